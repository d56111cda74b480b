"""The report's style sheet: light and dark after the reader's system, no font or script from anywhere."""

LIGHT = """--paper: #fbfbfa; --card: #ffffff; --ink: #1d2330; --faint: #6b7280; --line: #e5e7eb;
  --c0: #2563eb; --c1: #0d9488; --c2: #d97706; --c3: #db2777;
  --c4: #7c3aed; --c5: #4d7c0f; --c6: #0891b2; --c7: #b91c1c;
  --good: #15803d; --bad: #b91c1c; --said: #e8effd;"""
DARK = """--paper: #12151c; --card: #1a1f29; --ink: #e6e9ef; --faint: #98a1b3; --line: #2c3341;
  --c0: #60a5fa; --c1: #2dd4bf; --c2: #fbbf24; --c3: #f472b6;
  --c4: #a78bfa; --c5: #a3e635; --c6: #22d3ee; --c7: #f87171;
  --good: #4ade80; --bad: #f87171; --said: #1f3150;"""
RULES = """
:root { @LIGHT@ color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { @DARK@ } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
header, main { max-width: 1240px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 28px; }
h1 { margin: 0; font-size: 26px; } header p { margin: 2px 0 18px; color: var(--faint); }
h2 { margin: 0 0 6px; font-size: 15px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 14px; }
.tile, .card { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 14px 18px; }
.tile span, .tile small { display: block; color: var(--faint); font-size: 13px; }
.tile { padding: 14px; } .tile b { font-size: 22px; white-space: nowrap; font-variant-numeric: tabular-nums; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 14px;
  margin: 14px 0; }
.wide { margin: 14px 0; }
.note, .legend, .empty { color: var(--faint); font-size: 13px; margin: 0 0 8px; }
.legend { margin: 6px 0 0; } .legend span { margin-right: 16px; white-space: nowrap; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 6px; }
svg { width: 100%; height: auto; display: block; }
.grid { stroke: var(--line); stroke-width: 1; }
.tick, .axis, .row { fill: var(--faint); font-size: 12px; } .row { fill: var(--ink); }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; } .faint { opacity: .28; stroke-width: 1.4; }
.idle { fill: var(--line); opacity: .45; }
.line { fill: none !important; } rect { stroke: none !important; } circle { stroke: var(--card) !important; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--faint); font-weight: 500; font-size: 13px; }
th, td { padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); }
td { white-space: nowrap; } .scroll { overflow-x: auto; }
.zero { stroke: var(--faint); stroke-width: 1; } .bar { stroke-width: 1.6; }
.clear { fill: transparent; } .mean { stroke: var(--c2); } .stroke { background: var(--c2); }
.h1, .h2, .h3, .h4, .h5, .h6, .h7, .h8 { shape-rendering: crispEdges; }
.legend.levels span { white-space: normal; } .levels i { margin-right: 0; border-radius: 0; }
.levels i.stroke { margin-right: 6px; }
.chips { display: flex; flex-wrap: wrap; gap: 6px; margin: 0 0 12px; }
.chips label { border: 1px solid var(--line); border-radius: 999px; padding: 1px 11px; font-size: 13px;
  cursor: pointer; white-space: nowrap; }
input[type=radio] { position: absolute; opacity: 0; pointer-events: none; }
.at { display: none; }
.row { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(340px, 100%), 1fr)); gap: 14px; }
article { border-top: 1px solid var(--line); padding: 10px 0 14px; min-width: 0; }
.head { margin: 0 0 8px; font-size: 13px; color: var(--faint); } .head b { margin-right: 8px; }
.good { color: var(--good); } .bad { color: var(--bad); }
.turn { margin: 6px 0; max-width: 92%; border-radius: 10px; padding: 6px 12px; background: var(--paper);
  border: 1px solid var(--line); }
.turn small { color: var(--faint); font-size: 12px; }
.turn div { white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; max-height: 320px;
  overflow-y: auto; font: 13.5px/1.45 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.turn.assistant { margin-left: auto; background: var(--said); border-color: transparent; }
.turn.system { max-width: 100%; border-style: dashed; } .turn.tool { border-left: 3px solid var(--c1); }
ul { margin: 0; padding-left: 20px; }
summary { cursor: pointer; font-weight: 600; } pre { overflow-x: auto; font-size: 12.5px; }
main { padding-bottom: 40px; }
@media (max-width: 640px) { header, main { padding: 0 12px; } header { padding-top: 16px; }
  .card, .tile { padding: 12px; } .tile b { font-size: 20px; }
  .tiles { grid-template-columns: 1fr 1fr; gap: 8px; } .turn { max-width: 100%; }
  svg { overflow: visible; } .tick, .axis { font-size: 17px; }
  .scroll svg { min-width: 900px; } .scroll .tick, .scroll .axis { font-size: 13px; } }
.changes { margin-top: 6px; font-size: 13px; }
.band { stroke: none; opacity: .16; } .floor { stroke: none; }
.mark { stroke: var(--ink); stroke-dasharray: 3 3; } .handle { fill: var(--ink); }
"""

SERIES = "".join(
    f".c{at} {{ fill: var(--c{at}); stroke: var(--c{at}); background: var(--c{at}); }}\n" for at in range(8)
)
# Levels of the heat map, from the card's own colour to the first series'.
LEVELS = "".join(
    f".h{at} {{ --shade: color-mix(in srgb, var(--c0) {100 * at // 8}%, var(--card)); "
    "fill: var(--shade); background: var(--shade); }\n"
    for at in range(1, 9)
)
CSS = SERIES + LEVELS + RULES.replace("@LIGHT@", LIGHT).replace("@DARK@", DARK)


def palette() -> str:
    """The colours alone, for a page whose reader may choose between them: data-scheme on the root."""
    dark = f"{{ {DARK} color-scheme: dark; }}"
    return (
        f":root {{ {LIGHT} color-scheme: light; }}\n"
        f'@media (prefers-color-scheme: dark) {{ :root:not([data-scheme="light"]) {dark} }}\n'
        f':root[data-scheme="dark"] {dark}\n'
        f"{SERIES}{LEVELS}"
    )
