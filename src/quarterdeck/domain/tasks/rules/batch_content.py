"""The contents and tags of the tasks of a batch. No decision reads them, except the size of a content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from quarterdeck.domain.tasks.model.rows import Content, ContentUpdate, TaskRef


class BatchContent:
    def __init__(self, sizes: Mapping[TaskRef, int], tags: Mapping[TaskRef, Sequence[str]]) -> None:
        self._sizes = sizes
        self._tags = tags
        self.new: dict[TaskRef, Content] = {}
        """Contents of new tasks."""
        self.updates: dict[TaskRef, ContentUpdate] = {}
        self.new_tags: dict[TaskRef, tuple[str, ...]] = {}
        """All tags of new tasks, and of tasks whose tags were replaced."""
        self.removed_tags: set[tuple[str, str, str]] = set()
        """(zone id, tag, task id) of tags that were replaced. A tag that the task keeps is inserted again."""

    def size_of(self, ref: TaskRef) -> int:
        content = self.new.get(ref)
        return self._sizes.get(ref, 0) if content is None else content.size

    def insert(self, ref: TaskRef, content: Content, tags: tuple[str, ...]) -> None:
        self.new[ref] = content
        self.new_tags[ref] = tags

    def update(self, ref: TaskRef, update: ContentUpdate) -> None:
        changes = {name: value for name, value in msgspec.structs.asdict(update).items() if value is not None}
        if ref in self.new:
            self.new[ref] = msgspec.structs.replace(self.new[ref], **changes)
        else:
            earlier = self.updates.get(ref)
            self.updates[ref] = update if earlier is None else msgspec.structs.replace(earlier, **changes)

    def replace_tags(self, ref: TaskRef, tags: tuple[str, ...]) -> None:
        zone_id, task_id = ref
        self.removed_tags |= {(zone_id, tag, task_id) for tag in self.new_tags.get(ref, self._tags.get(ref, ()))}
        self.new_tags[ref] = tags
