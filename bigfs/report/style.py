"""The style sheet of reports: one column on a phone, two on a desk, plain on paper."""

STYLE = """
:root{--ink:#1b1f24;--soft:#5c6670;--line:#dfe3e8;--paper:#fff;--accent:#0072b2;--mark:#d55e00}
@media (prefers-color-scheme:dark){:root{--ink:#e8eaed;--soft:#a0a8b0;--line:#343a40;
--paper:#15181b;--accent:#56b4e9;--mark:#e69f00}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:1100px;margin:auto;padding:1.2rem;columns:2 420px;column-gap:2.4rem}
header{column-span:all;margin-bottom:1.6rem}
section{break-inside:avoid;margin-bottom:1.6rem}
h1{font-size:2rem;line-height:1.2;margin:.2rem 0}
h2{font-size:1.1rem;margin:0 0 .4rem;border-bottom:1px solid var(--line);padding-bottom:.2rem}
p{margin:.3rem 0;color:var(--soft);overflow-wrap:anywhere}
.chips{list-style:none;margin:.6rem 0;padding:0;display:flex;flex-wrap:wrap;gap:.35rem}
.chips li{padding:.1rem .55rem;border-radius:1rem;border:1px solid var(--line);max-width:100%;
overflow-wrap:anywhere;
background:color-mix(in srgb,var(--accent) calc(var(--strength)*35%),transparent)}
.tiles{display:grid;gap:.8rem;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));margin-top:1rem}
.tiles div{border:1px solid var(--line);border-radius:.5rem;padding:.6rem .8rem}
.tiles b{display:block;font-size:1.4rem}
.tiles span{color:var(--soft);font-size:.85rem}
table{border-collapse:collapse;width:100%;font-size:.9rem}
td,th{padding:.15rem .5rem .15rem 0;text-align:left;font-weight:normal;vertical-align:baseline;
border-bottom:1px solid var(--line)}
.scores th,.facts td{overflow-wrap:anywhere}
.across{column-span:all}
.wide{overflow-x:auto}
.scores th{min-width:5.5rem}
.scores .bar{width:25%;min-width:3rem}
.scores i{display:block;height:.7rem;background:var(--accent);border-radius:2px}
.out{color:var(--soft)}
.out i{background:var(--line)}
svg{width:100%;height:auto;display:block}
.square{max-width:440px}
.figure{overflow-x:auto;background:#fff}
svg text{fill:var(--soft);font-size:13px}
.note{border-left:3px solid var(--mark);padding-left:.6rem;margin-top:.8rem}
.grid{stroke:var(--line)}
.line{fill:none;stroke:var(--accent);stroke-width:2.5}
.thin{stroke-width:1}
.mark{stroke:var(--mark);stroke-width:1.5}
.dot{fill:var(--mark)}
.frame{fill:none;stroke:var(--line)}
.cloud{fill:none;stroke-width:4;stroke-linecap:round;stroke-opacity:.6}
pre{white-space:pre-wrap;overflow-wrap:anywhere;padding:.6rem;border-radius:.4rem;
background:color-mix(in srgb,var(--line) 40%,transparent);font-size:.85rem}
@media print{:root{--ink:#000;--soft:#333;--line:#bbb;--paper:#fff;--accent:#0072b2}
main{padding:0;max-width:none}
section{break-inside:auto}
h2,p:not(:last-child){break-after:avoid}
p,svg,tr,.wide,.facts{break-inside:avoid}
.square{max-width:300px}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
