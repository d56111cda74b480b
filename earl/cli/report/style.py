"""The report's style sheet: light and dark after the reader's system, no font or script from anywhere."""

CSS = """
:root { --paper: #fbfbfa; --card: #ffffff; --ink: #1d2330; --faint: #6b7280; --line: #e5e7eb;
  --c0: #2563eb; --c1: #0d9488; --c2: #d97706; --c3: #db2777;
  --c4: #7c3aed; --c5: #4d7c0f; --c6: #0891b2; --c7: #b91c1c; }
@media (prefers-color-scheme: dark) { :root { --paper: #12151c; --card: #1a1f29; --ink: #e6e9ef;
  --faint: #98a1b3; --line: #2c3341; --c0: #60a5fa; --c1: #2dd4bf; --c2: #fbbf24;
  --c3: #f472b6; --c4: #a78bfa; --c5: #a3e635; --c6: #22d3ee; --c7: #f87171; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
header, main { max-width: 1240px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 28px; }
h1 { margin: 0; font-size: 26px; } header p { margin: 2px 0 18px; color: var(--faint); }
h2 { margin: 0 0 6px; font-size: 15px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 14px; }
.tile, .card { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 14px 18px; }
.tile span, .tile small { display: block; color: var(--faint); font-size: 13px; }
.tile b { font-size: 24px; font-variant-numeric: tabular-nums; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 14px;
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
.c0 { fill: var(--c0); stroke: var(--c0); background: var(--c0); }
.c1 { fill: var(--c1); stroke: var(--c1); background: var(--c1); }
.c2 { fill: var(--c2); stroke: var(--c2); background: var(--c2); }
.c3 { fill: var(--c3); stroke: var(--c3); background: var(--c3); }
.c4 { fill: var(--c4); stroke: var(--c4); background: var(--c4); }
.c5 { fill: var(--c5); stroke: var(--c5); background: var(--c5); }
.c6 { fill: var(--c6); stroke: var(--c6); background: var(--c6); }
.c7 { fill: var(--c7); stroke: var(--c7); background: var(--c7); }
.line { fill: none !important; } rect { stroke: none !important; } circle { stroke: var(--card) !important; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--faint); font-weight: 500; font-size: 13px; }
th, td { padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); }
summary { cursor: pointer; font-weight: 600; } pre { overflow-x: auto; font-size: 12.5px; }
main { padding-bottom: 40px; }
"""
