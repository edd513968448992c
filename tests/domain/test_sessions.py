from tests.support.keel import Keel, assert_counts_are_what_the_rows_say

async def test_x(keel: Keel) -> None:
    made = await keel.tree(2,2)
    assert_counts_are_what_the_rows_say(keel.side)
    print(await keel.end(made[1]))
    assert_counts_are_what_the_rows_say(keel.side)
    print(await keel.log())
    keel.side.expire(*made)
    print(await keel.sweep())
    print(len(await keel.page()), len(await keel.subtree(made[0])))
    assert_counts_are_what_the_rows_say(keel.side)
