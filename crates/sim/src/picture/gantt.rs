//! The Gantt chart: a row for every slot that was used, or a row for several workers where there are too many, with what they
//! ran, what they stole and when they were away; below it how much ran and waited.

use std::fmt::Write as _;

use super::story::{Bar, Ending, Story};
use super::svg::{Scale, escape, n, short, span, thousands, ticks};
use crate::outcome::Outcome;
use crate::world::World;

const WIDTH: f64 = 1280.0;
const LEFT: f64 = 92.0;
const RIGHT: f64 = 36.0;
const TOP: f64 = 96.0;
/// Rows drawn one by one at most.
const MOST_ROWS: usize = 240;
/// Bars drawn one by one at most; shorter ones are drawn together.
const MOST_BARS: f64 = 40_000.0;
/// Bars that tell what they are when pointed at, at most.
const MOST_TOLD: usize = 4000;
/// Arrows of steals at most.
const MOST_ARROWS: usize = 160;
/// Parts of the time in a row that stands for several slots, and shades of how busy they are.
const PARTS: usize = 320;
const SHADES: usize = 8;

/// The chart of a world that kept its marks, as an SVG document.
#[must_use]
pub fn gantt(world: &World, outcome: &Outcome) -> String {
    draw(&Story::of(world), outcome)
}

/// Which row belongs to whom.
struct Rows {
    /// The first row of each worker, or the row it shares.
    first: Vec<usize>,
    count: usize,
    height: f64,
    /// How many workers share a row; 0 if every slot has its own.
    together: usize,
}

impl Rows {
    fn of(story: &Story<'_>) -> Rows {
        let nodes = story.deeds.len();
        let lanes: usize = story.deeds.iter().map(|deeds| deeds.lanes.max(1) as usize).sum();
        if lanes <= MOST_ROWS {
            let mut next = 0;
            let first = story.deeds.iter().map(|deeds| {
                let first = next;
                next += deeds.lanes.max(1) as usize;
                first
            });
            let first = first.collect();
            return Rows {
                first,
                count: lanes.max(1),
                height: (880.0 / lanes.max(1) as f64).clamp(4.0, 30.0),
                together: 0,
            };
        }
        let together = nodes.div_ceil(MOST_ROWS).max(1);
        let count = nodes.div_ceil(together);
        let first = (0..nodes).map(|node| node / together).collect();
        Rows { first, count, height: (880.0 / count as f64).clamp(4.0, 30.0), together }
    }

    fn y(&self, node: u32, lane: u32) -> f64 {
        let lane = if self.together == 0 { lane as usize } else { 0 };
        TOP + (self.first[node as usize] + lane) as f64 * self.height
    }

    fn bottom(&self) -> f64 {
        TOP + self.count as f64 * self.height
    }
}

pub(super) fn draw(story: &Story<'_>, outcome: &Outcome) -> String {
    let rows = Rows::of(story);
    let scale = Scale { left: LEFT, width: WIDTH - LEFT - RIGHT, span_s: story.span_s() };
    let bottom = rows.bottom();
    let (load_top, load_height) = (bottom + 62.0, 110.0);
    let height = load_top + load_height + 44.0;
    let mut out = String::new();
    let size = format!("viewBox=\"0 0 {} {}\" width=\"{}\" height=\"{}\"", n(WIDTH), n(height), n(WIDTH), n(height));
    let _ = write!(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" {size} class=\"gantt\" role=\"img\">");
    let _ = write!(out, "<title>{}</title>", escape(&format!("Gantt chart of {}", outcome.name)));
    out.push_str(STYLE);
    let _ = write!(out, "<rect class=\"paper\" width=\"{}\" height=\"{}\"/>", n(WIDTH), n(height));
    let mut notes = Vec::new();
    ground(&mut out, story, &rows, scale);
    scale.axis(&mut out, TOP, bottom);
    aways(&mut out, story, &rows, scale);
    if rows.together == 0 {
        bars(&mut out, story, &rows, scale, &mut notes);
    } else {
        shades(&mut out, story, &rows, scale, &mut notes);
    }
    let arrows = arrows(&mut out, story, &rows, scale);
    if arrows < story.moves.len() {
        notes.push(format!(
            "arrows for {} of {} steals",
            thousands(arrows as u64),
            thousands(story.moves.len() as u64)
        ));
    }
    bound(&mut out, outcome, scale, bottom);
    head(&mut out, story, outcome, rows.together > 0, &notes);
    load(&mut out, story, scale, load_top, load_height);
    out.push_str("</svg>\n");
    out
}

fn head(out: &mut String, story: &Story<'_>, outcome: &Outcome, shaded: bool, notes: &[String]) {
    let line = |out: &mut String, class: &str, y: f64, text: &str| {
        let _ = write!(out, "<text class=\"{class}\" x=\"{}\" y=\"{}\">{text}</text>", n(LEFT), n(y));
    };
    let workers = format!("{} workers", thousands(outcome.workers));
    line(out, "title", 30.0, &format!("{} · {workers} · seed {}", short(&outcome.name, 70), outcome.seed));
    let figures = format!(
        "makespan {} · no schedule is shorter than {} · efficiency {:.1}% · {} tasks · {} moved by stealing",
        span(outcome.makespan_s),
        span(outcome.lower_bound_s),
        100.0 * outcome.efficiency,
        thousands(outcome.tasks.submitted),
        thousands(outcome.steals.moved)
    );
    line(out, "figures", 50.0, &figures);
    // The legend, with what was left out after it.
    let mut x = LEFT;
    let entries: Vec<(&str, &str)> = if shaded {
        let mut entries = vec![("shade", "busy: the darker the more"), ("steal", "steal")];
        entries.extend(story.aways.iter().any(|away| away.dead).then_some(("dead", "dead")));
        entries
    } else {
        let any = |ending: Ending| story.bars.iter().any(|bar| bar.ending == ending);
        let mut entries = vec![("own", "ran where it was placed"), ("stolen", "ran where it was stolen to")];
        entries.extend(any(Ending::Failed).then_some(("failed", "failed")));
        entries.extend(any(Ending::Lost).then_some(("lost", "lost with its worker")));
        entries.extend(story.aways.iter().any(|away| away.dead).then_some(("dead", "worker dead")));
        entries.extend(story.aways.iter().any(|away| !away.dead).then_some(("paused", "worker stands still")));
        entries.extend((!story.moves.is_empty()).then_some(("steal", "steal")));
        entries
    };
    for (class, words) in entries {
        if class == "steal" {
            let _ = write!(out, "<path class=\"arrow\" d=\"M{} 76L{} 70\"/>", n(x), n(x + 14.0));
        } else {
            let _ =
                write!(out, "<rect class=\"{class}\" x=\"{}\" y=\"67\" width=\"14\" height=\"11\" rx=\"2\"/>", n(x));
        }
        let _ = write!(out, "<text class=\"tick\" x=\"{}\" y=\"77\">{words}</text>", n(x + 20.0));
        x += 40.0 + 6.1 * words.chars().count() as f64;
    }
    if !notes.is_empty() {
        let (x, text) = (n(WIDTH - RIGHT), escape(&notes.join(" · ")));
        let _ = write!(out, "<text class=\"note\" x=\"{x}\" y=\"77\" text-anchor=\"end\">{text}</text>");
    }
}

/// The rows without what happened in them, and their names.
fn ground(out: &mut String, story: &Story<'_>, rows: &Rows, scale: Scale) {
    let nodes = story.deeds.len();
    let room = (13.0 / rows.height).max(1.0);
    let mut named = -1.0e9;
    for node in 0..nodes {
        let (y, shared) = (rows.y(node as u32, 0), rows.together > 1 && !node.is_multiple_of(rows.together));
        if shared {
            continue;
        }
        let lanes = if rows.together == 0 { story.deeds[node].lanes.max(1) as usize } else { 1 };
        let band = if rows.together > 1 { node / rows.together } else { node };
        if band.is_multiple_of(2) {
            let (x, width, height) = (n(LEFT), n(scale.width), n(lanes as f64 * rows.height));
            let _ =
                write!(out, "<rect class=\"band\" x=\"{x}\" y=\"{}\" width=\"{width}\" height=\"{height}\"/>", n(y));
        }
        let row = (y - TOP) / rows.height;
        if row - named >= room || lanes as f64 >= room {
            named = row;
            let last = (node + rows.together.max(1) - 1).min(nodes - 1);
            let name = if rows.together > 1 { format!("{node}–{last}") } else { format!("worker {node}") };
            let middle = y + (lanes as f64 * rows.height / 2.0).min(26.0) + 4.0;
            let x = n(LEFT - 8.0);
            let _ = write!(out, "<text class=\"tick\" x=\"{x}\" y=\"{}\" text-anchor=\"end\">{name}</text>", n(middle));
        }
    }
}

fn aways(out: &mut String, story: &Story<'_>, rows: &Rows, scale: Scale) {
    if rows.together > 1 {
        return;
    }
    for away in story.aways.iter().take(MOST_TOLD) {
        let (x, end) = (scale.x(story.seconds(away.from)), scale.x(story.seconds(away.to)));
        let lanes = if rows.together == 0 { f64::from(story.deeds[away.node as usize].lanes.max(1)) } else { 1.0 };
        let class = if away.dead { "dead" } else { "paused" };
        let (y, width, height) = (rows.y(away.node, 0), n((end - x).max(0.8)), n(lanes * rows.height));
        let _ = write!(
            out,
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{width}\" height=\"{height}\"/>",
            n(x),
            n(y)
        );
    }
}

fn class_of(bar: &Bar) -> &'static str {
    match (bar.ending, bar.stolen.is_some()) {
        (Ending::Failed, _) => "failed",
        (Ending::Lost, _) => "lost",
        (Ending::Well, true) => "stolen",
        (Ending::Well, false) => "own",
    }
}

fn bars(out: &mut String, story: &Story<'_>, rows: &Rows, scale: Scale, notes: &mut Vec<String>) {
    // By row and time, so that what is too short to be seen is drawn together with its neighbours.
    let mut order: Vec<&Bar> = story.bars.iter().collect();
    order.sort_by_key(|bar| (rows.first[bar.node as usize] + bar.lane as usize, bar.from, bar.to));
    let many = order.len() as f64 > MOST_BARS;
    let least = if many { (scale.width * rows.count as f64 / MOST_BARS).max(0.7) } else { 0.7 };
    let gap = if rows.height >= 8.0 { 2.0 } else { 0.8 };
    let told = order.len() <= MOST_TOLD;
    let mut together = 0u64;
    let mut at = 0;
    while at < order.len() {
        let bar = order[at];
        let (y, height) = (rows.y(bar.node, bar.lane) + gap / 2.0, rows.height - gap);
        let (x, mut end) = (scale.x(story.seconds(bar.from)), scale.x(story.seconds(bar.to)));
        let mut class = class_of(bar);
        let mut count = 1;
        // Short ones in a row.
        while end - x < least
            && let Some(next) = order.get(at + count)
            && next.node == bar.node
            && next.lane == bar.lane
            && scale.x(story.seconds(next.from)) - end < least
        {
            end = scale.x(story.seconds(next.to));
            class = if class_of(next) == "own" { class } else { class_of(next) };
            count += 1;
        }
        together += if count > 1 { count as u64 } else { 0 };
        at += count;
        let width = (end - x).max(0.5);
        let shown = if width > 3.0 { width - 0.8 } else { width };
        let round = if rows.height >= 12.0 && width > 6.0 { " rx=\"2\"" } else { "" };
        let place = format!("x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"{round}", n(x), n(y), n(shown), n(height));
        if told && count == 1 {
            let tip = escape(&tip(story, bar));
            let _ = write!(out, "<rect class=\"{class}\" {place}><title>{tip}</title></rect>");
        } else {
            let _ = write!(out, "<rect class=\"{class}\" {place}/>");
        }
        if count == 1 && height >= 11.0 && width >= 34.0 {
            let name = short(&story.world.workload().label(bar.task), ((width - 8.0) / 6.4) as usize);
            let (x, y) = (n(x + 4.0), n(y + height / 2.0 + 3.6));
            let _ = write!(out, "<text class=\"name\" x=\"{x}\" y=\"{y}\">{name}</text>");
        }
    }
    if together > 0 {
        notes.push(format!("{} short runs are drawn together", thousands(together)));
    }
}

fn tip(story: &Story<'_>, bar: &Bar) -> String {
    let stolen = bar.stolen.map_or_else(String::new, |(from, _)| format!(", stolen from worker {from}"));
    format!(
        "{} on worker {}: {} from {}{stolen}",
        story.world.workload().label(bar.task),
        bar.node,
        span(bar.to.since(bar.from).as_secs_f64()),
        span(story.seconds(bar.from)),
    )
}

/// Rows for several slots: how busy they are, in a few shades.
fn shades(out: &mut String, story: &Story<'_>, rows: &Rows, scale: Scale, notes: &mut Vec<String>) {
    let busy = story.busy(PARTS, rows.count, |node| rows.first[node as usize]);
    let mut slots = vec![0.0; rows.count];
    for (node, deeds) in story.deeds.iter().enumerate() {
        let class = &story.world.setting().cluster[story.class_of(node as u32)];
        // A worker with very many slots is full when its cores are: what it used at the most counts.
        slots[rows.first[node]] += f64::from(class.slots().min(deeds.lanes.max(1)));
    }
    let part_s = story.span_s() / PARTS as f64;
    let width = scale.width / PARTS as f64;
    let mut paths = vec![String::new(); SHADES + 1];
    for (row, parts) in busy.iter().enumerate() {
        let shade = |part: usize| {
            let share = parts[part] / (slots[row] * part_s).max(1e-12);
            if share > 0.0 { (share * SHADES as f64 + 0.5).clamp(1.0, SHADES as f64) as usize } else { 0 }
        };
        let mut part = 0;
        while part < PARTS {
            let this = shade(part);
            let mut end = part + 1;
            while end < PARTS && shade(end) == this {
                end += 1;
            }
            if this > 0 {
                let (x, y) = (n(LEFT + part as f64 * width), n(TOP + row as f64 * rows.height));
                let (w, h) = (n((end - part) as f64 * width), n(rows.height - 0.4));
                let _ = write!(paths[this], "M{x} {y}h{w}v{h}h-{w}z");
            }
            part = end;
        }
    }
    for (shade, path) in paths.iter().enumerate().filter(|(_, path)| !path.is_empty()) {
        let share = tidy_share(shade);
        let _ = write!(out, "<path class=\"shade\" fill-opacity=\"{share}\" d=\"{path}\"/>");
    }
    let each =
        if rows.together > 1 { format!("{} workers", rows.together) } else { "all slots of a worker".to_owned() };
    notes.push(format!("a row shows {each}"));
}

fn tidy_share(shade: usize) -> String {
    n(0.12 + 0.88 * shade as f64 / SHADES as f64)
}

/// Arrows from victim to thief; how many were drawn.
fn arrows(out: &mut String, story: &Story<'_>, rows: &Rows, scale: Scale) -> usize {
    let every = story.moves.len().div_ceil(MOST_ARROWS).max(1);
    let mut drawn = 0;
    for &(at, _, from, to) in story.moves.iter().step_by(every) {
        let x = scale.x(story.seconds(at));
        let middle = |node: u32| rows.y(node, 0) + rows.height / 2.0;
        let (start, end) = (middle(from), middle(to));
        // A bow, so that arrows at the same moment do not cover each other.
        let bend = n((x - ((end - start).abs() * 0.12).clamp(3.0, 26.0)).max(LEFT));
        let (x, start, end) = (n(x), n(start), n(end));
        let _ = write!(out, "<path class=\"arrow\" d=\"M{x} {start}Q{bend} {start} {x} {end}\"/>");
        let _ = write!(out, "<circle class=\"head\" cx=\"{x}\" cy=\"{end}\" r=\"1.6\"/>");
        drawn += 1;
    }
    drawn
}

/// Where an ideal schedule could have ended.
fn bound(out: &mut String, outcome: &Outcome, scale: Scale, bottom: f64) {
    if outcome.lower_bound_s > 0.0 && outcome.lower_bound_s < scale.span_s {
        let x = scale.x(outcome.lower_bound_s);
        let (x, text) = (n(x), n(x - 5.0));
        let _ = write!(out, "<path class=\"bound\" d=\"M{x} {}V{}\"/>", n(TOP - 8.0), n(bottom));
        let _ = write!(
            out,
            "<text class=\"tick\" x=\"{text}\" y=\"{}\" text-anchor=\"end\">lower bound</text>",
            n(TOP - 3.0)
        );
    }
}

/// How many tasks ran and waited.
pub(super) fn load(out: &mut String, story: &Story<'_>, scale: Scale, top: f64, height: f64) {
    let most = |of: fn(&super::story::Load) -> i64| story.load.iter().map(of).max().unwrap_or(0).max(1) as f64;
    let (waiting, running) = (most(|load| load.waiting), most(|load| load.running));
    let bottom = top + height;
    scale.axis(out, top, bottom);
    let gap = 12.0;
    let half = (height - gap) / 2.0;
    for (class, name, most, top, of) in [
        ("ran", "running", running, top, (|load| load.running) as fn(&super::story::Load) -> i64),
        ("waited", "waiting", waiting, top + half + gap, |load| load.waiting),
    ] {
        let y = |value: i64| n(top + half - half * (value.max(0) as f64 / most).min(1.0));
        let mut path = format!("M{} {}", n(LEFT), n(top + half));
        let mut last = LEFT;
        for load in story.load.iter().filter(|load| load.at >= story.start) {
            let x = scale.x(story.seconds(load.at));
            last = last.max(x);
            let _ = write!(path, "H{}V{}", n(x), y(of(load)));
        }
        let _ = write!(path, "H{}V{}Z", n((LEFT + scale.width).max(last)), n(top + half));
        let _ = write!(out, "<path class=\"{class}\" d=\"{path}\"/>");
        let _ = write!(out, "<path class=\"base\" d=\"M{} {}H{}\"/>", n(LEFT), n(top + half), n(LEFT + scale.width));
        let x = n(LEFT - 8.0);
        let _ = write!(
            out,
            "<text class=\"tick\" x=\"{x}\" y=\"{}\" text-anchor=\"end\">{name}</text>",
            n(top + half / 2.0 + 4.0)
        );
        if let Some(highest) = ticks(most, 2.0).last().filter(|tick| **tick > 0.0) {
            let height = n(top + half - half * highest / most);
            let _ = write!(out, "<path class=\"grid\" d=\"M{} {height}H{}\"/>", n(LEFT), n(LEFT + scale.width));
            let x = n(LEFT + scale.width + 3.0);
            let _ = write!(out, "<text class=\"small\" x=\"{x}\" y=\"{height}\">{}</text>", compact(*highest));
        }
    }
}

/// A number in very little room.
fn compact(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{}M", super::svg::tidy(v / 1e6, 1)),
        v if v >= 1e4 => format!("{}k", super::svg::tidy(v / 1e3, 0)),
        v => super::svg::tidy(v, 0),
    }
}

/// Colours of light and dark paper. Those of bars are told apart without colour vision too.
const STYLE: &str = "<style>\
.gantt{--paper:#fff;--ink:#1c2330;--soft:#667085;--line:#e4e7ec;--band:#f7f8fa;--own:#3f7fd0;--stolen:#f59e2e;\
--failed:#d33f49;--dead:#cfd4dc;--run:#3f7fd0;--wait:#a78bda;font-family:system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\
@media(prefers-color-scheme:dark){.gantt{--paper:#12161d;--ink:#e8ebf0;--soft:#98a2b3;--line:#2a313c;--band:#181d26;\
--own:#4f8fdf;--stolen:#f0a03c;--failed:#e5646c;--dead:#3a4350;--run:#4f8fdf;--wait:#a58be0}}\
.gantt .paper{fill:var(--paper)}.gantt .band{fill:var(--band)}.gantt text{fill:var(--ink)}\
.gantt .title{font-size:18px;font-weight:600}.gantt .figures{font-size:13px;fill:var(--soft)}\
.gantt .tick{font-size:11px;fill:var(--soft)}.gantt .small{font-size:9px;fill:var(--soft)}\
.gantt .note{font-size:11px;font-style:italic;fill:var(--soft)}.gantt .name{font-size:10.5px;fill:#fff;pointer-events:none}\
.gantt .grid{stroke:var(--line);fill:none}.gantt .base{stroke:var(--soft);fill:none;stroke-width:.6}\
.gantt .own{fill:var(--own)}.gantt .stolen{fill:var(--stolen)}.gantt .failed{fill:var(--failed)}\
.gantt .lost{fill:var(--failed);fill-opacity:.35;stroke:var(--failed);stroke-dasharray:3 2}\
.gantt .dead{fill:var(--dead)}.gantt .paused{fill:var(--dead);fill-opacity:.5}.gantt .shade{fill:var(--own)}\
.gantt .arrow{stroke:var(--ink);stroke-width:.8;stroke-opacity:.38;fill:none}.gantt .head{fill:var(--ink);fill-opacity:.7}\
.gantt .bound{stroke:var(--ink);stroke-dasharray:5 4;fill:none;stroke-opacity:.7}\
.gantt .ran{fill:var(--run);fill-opacity:.75}.gantt .waited{fill:var(--wait);fill-opacity:.75}\
</style>";
