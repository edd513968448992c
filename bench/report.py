from pathlib import Path
from bench.results import Part, Results
def write(r: Results) -> list[Path]: return []
def as_text(part: Part) -> str:
    out=[]
    for l in part.lines:
        out.append(f"{l.name:75} {l.rate:9.0f} us={l.median('server_us')} srv={l.median('server')} pg={l.median('postgres')} load={l.median('load')} idle={l.median('idle')} p99={l.median('p99_ms')}")
    for f in part.figures: out.append(f"{f.name:60} {f.value:.3f}{f.unit} {f.verdict} {f.values}")
    return "\n".join(out)
