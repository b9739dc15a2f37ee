//! The report: one HTML page that needs nothing else, with the figures, how busy everybody was, what waited, who stole from
//! whom, the Gantt chart and a table of all workers.

use std::fmt::Write as _;

use super::gantt;
use super::story::{Load, Story};
use super::svg::{Scale, escape, n, short, span, thousands, ticks, tidy};
use crate::marks::{Marks, Sample};
use crate::outcome::Outcome;
use crate::world::World;

const WIDTH: f64 = 1240.0;
const LEFT: f64 = 64.0;
/// Points of a curve over time.
const PARTS: usize = 300;
/// Classes with a curve of their own.
const MOST_CLASSES: usize = 6;
/// Rows and columns of the matrix of steals.
const MOST_GROUPS: usize = 24;
/// Pairs of thief and victim that are listed.
const PAIRS: usize = 12;
/// Workers in the table; of more, half as many of the busiest and of the least busy.
const MOST_WORKERS: usize = 1000;
const COLOURS: [&str; 6] = ["--accent", "--warm", "--green", "--violet", "--bad", "--soft"];

/// The report of a world that kept its marks, as an HTML page.
#[must_use]
pub fn report(world: &World, outcome: &Outcome) -> String {
    let story = Story::of(world);
    let mut out = String::new();
    let title = short(&outcome.name, 120);
    out.push_str("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    out.push_str("<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n");
    // Nothing is fetched, whatever a name from a file might say.
    out.push_str("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n");
    let _ = write!(out, "<title>{title} · filch sim</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n");
    let _ = writeln!(out, "<h1>{title}</h1>");
    let classes: Vec<String> = world
        .setting()
        .cluster
        .iter()
        .take(8)
        .map(|class| format!("{} × {}", class.count, short(&class.name, 40)))
        .collect();
    let more = if world.setting().cluster.len() > 8 { ", …" } else { "" };
    let _ = writeln!(out, "<p>seed {} · {}{more}</p>", outcome.seed, classes.join(", "));
    cards(&mut out, outcome);
    notes(&mut out, outcome);
    utilisation(&mut out, &story);
    queues(&mut out, &story);
    out.push_str("<h2>Who ran what, when</h2>\n<figure>\n");
    out.push_str(&gantt::draw(&story, outcome));
    out.push_str("</figure>\n");
    steals(&mut out, &story, outcome);
    workers(&mut out, &story);
    let _ = write!(
        out,
        "<footer>{} events and {} messages · digest {}</footer>\n</main>\n<script>{}</script>\n</body>\n</html>\n",
        thousands(outcome.events),
        thousands(outcome.messages),
        escape(&outcome.digest),
        JS
    );
    out
}

const CSS: &str = include_str!("../../assets/report.css");
const JS: &str = include_str!("../../assets/report.js");

fn cards(out: &mut String, outcome: &Outcome) {
    let Outcome { tasks, steals, wait_s, .. } = outcome;
    let won = 100.0 * steals.successes as f64 / steals.attempts.max(1) as f64;
    let lost = tasks.failed + tasks.lost;
    let cards: Vec<(String, String, bool)> = vec![
        (span(outcome.makespan_s), "makespan".to_owned(), false),
        (
            format!("{:.1}%", 100.0 * outcome.efficiency),
            format!("efficient; no schedule is shorter than {}", span(outcome.lower_bound_s)),
            false,
        ),
        (tidy(outcome.speedup, 2), "times as fast as one slot".to_owned(), false),
        (thousands(tasks.completed), format!("of {} tasks completed", thousands(tasks.submitted)), false),
        (thousands(lost), format!("{} failed, {} lost", thousands(tasks.failed), thousands(tasks.lost)), lost > 0),
        (span(wait_s.p50), format!("waited; p95 {}, p99 {}", span(wait_s.p95), span(wait_s.p99)), false),
        (thousands(steals.moved), "tasks moved by stealing".to_owned(), false),
        (format!("{won:.0}%"), format!("of {} steal attempts won", thousands(steals.attempts)), false),
        (tidy(outcome.messages as f64 / tasks.submitted.max(1) as f64, 1), "messages for each task".to_owned(), false),
        (thousands(outcome.deaths), "deaths of workers".to_owned(), outcome.deaths > 0),
    ];
    out.push_str("<div class=\"cards\">\n");
    for (value, words, bad) in cards {
        let class = if bad { "card bad" } else { "card" };
        let _ = writeln!(out, "<div class=\"{class}\"><b>{value}</b><span>{words}</span></div>");
    }
    out.push_str("</div>\n");
}

fn notes(out: &mut String, outcome: &Outcome) {
    for note in &outcome.notes {
        let _ = writeln!(out, "<p>Note: {}</p>", escape(note));
    }
}

// ---- curves over time ----

struct Curve {
    name: String,
    colour: &'static str,
    /// (seconds, value)
    points: Vec<(f64, f64)>,
}

/// A chart of curves over the time of the run.
fn chart(out: &mut String, story: &Story<'_>, curves: &[Curve], most: f64, percent: bool, filled: bool) {
    let (top, height) = (14.0, 200.0);
    let scale = Scale { left: LEFT, width: WIDTH - LEFT - 16.0, span_s: story.span_s() };
    let bottom = top + height;
    let _ = write!(out, "<figure><svg viewBox=\"0 0 {} {}\" role=\"img\">", n(WIDTH), n(bottom + 30.0));
    scale.axis(out, top, bottom);
    let most = most.max(1e-9);
    for tick in ticks(most, 4.0) {
        let y = n(bottom - height * tick / most);
        let words = if percent { format!("{}%", tidy(100.0 * tick, 0)) } else { thousands(tick as u64) };
        let _ = write!(out, "<path class=\"grid\" d=\"M{} {y}H{}\"/>", n(LEFT), n(LEFT + scale.width));
        let _ = write!(
            out,
            "<text class=\"tick\" x=\"{}\" y=\"{y}\" dy=\"4\" text-anchor=\"end\">{words}</text>",
            n(LEFT - 8.0)
        );
    }
    for curve in curves {
        let y = |value: f64| n(bottom - height * (value / most).clamp(0.0, 1.0));
        let mut path = String::new();
        for (at, (seconds, value)) in curve.points.iter().enumerate() {
            let _ = write!(path, "{}{} {}", if at == 0 { 'M' } else { 'L' }, n(scale.x(*seconds)), y(*value));
        }
        let colour = curve.colour;
        if filled && let (Some(first), Some(last)) = (curve.points.first(), curve.points.last()) {
            let (first, last, bottom) = (n(scale.x(first.0)), n(scale.x(last.0)), n(bottom));
            let area = format!("{path}L{last} {bottom}L{first} {bottom}Z");
            let _ = write!(out, "<path d=\"{area}\" fill=\"var({colour})\" fill-opacity=\".14\"/>");
        }
        let _ = write!(out, "<path class=\"line\" d=\"{path}\" stroke=\"var({colour})\"/>");
    }
    out.push_str("</svg></figure>\n<div class=\"legend\">");
    for curve in curves {
        let _ =
            write!(out, "<span><i style=\"background:var({})\"></i>{}</span>", curve.colour, short(&curve.name, 60));
    }
    out.push_str("</div>\n");
}

fn utilisation(out: &mut String, story: &Story<'_>) {
    out.push_str("<h2>How busy</h2>\n<p>Share of the slots that ran something.</p>\n");
    let cluster = &story.world.setting().cluster;
    let alone = cluster.len() > 1 && cluster.len() <= MOST_CLASSES;
    let mut class_of = Vec::with_capacity(story.deeds.len());
    for (at, class) in cluster.iter().enumerate() {
        class_of.extend((0..class.count).map(|_| if alone { at } else { 0 }));
    }
    let groups = if alone { cluster.len() } else { 1 };
    let busy = story.busy(PARTS, groups, |node| class_of[node as usize]);
    let part_s = story.span_s() / PARTS as f64;
    let curve = |group: usize| {
        let of = cluster.iter().enumerate().filter(|(at, _)| !alone || *at == group);
        let slots: f64 = of.map(|(_, class)| f64::from(class.count) * f64::from(class.slots())).sum();
        let points = busy[group].iter().enumerate();
        Curve {
            name: if alone { cluster[group].name.clone() } else { "all workers".to_owned() },
            colour: COLOURS[group],
            points: points.map(|(part, busy)| ((part as f64 + 0.5) * part_s, busy / (slots * part_s))).collect(),
        }
    };
    let curves: Vec<Curve> = (0..groups).map(curve).collect();
    let highest = curves.iter().flat_map(|curve| &curve.points).map(|point| point.1).fold(0.0, f64::max);
    // What is hardly busy is still to be seen.
    let most = if highest > 0.5 { 1.0 } else { (highest * 1.25).max(0.01) };
    chart(out, story, &curves, most, true, groups == 1);
}

fn queues(out: &mut String, story: &Story<'_>) {
    out.push_str("<h2>What waited</h2>\n<p>Tasks that had arrived and not begun, those among them in the workers' own queues, and the longest of these queues.</p>\n");
    let samples = story.world.marks().map(Marks::samples).unwrap_or_default();
    let of_load = |of: fn(&Load) -> i64| -> Vec<(f64, f64)> {
        let mut points = Vec::new();
        let mut before = 0.0;
        for load in story.load.iter().filter(|load| load.at >= story.start) {
            let at = story.seconds(load.at);
            points.push((at, before));
            before = of(load).max(0) as f64;
            points.push((at, before));
        }
        points
    };
    let of_samples = |of: fn(&Sample) -> u64| -> Vec<(f64, f64)> {
        let during = samples.iter().filter(|sample| sample.at >= story.start && sample.at <= story.end);
        during.map(|sample| (story.seconds(sample.at), of(sample) as f64)).collect()
    };
    let curves = [
        Curve { name: "waiting".to_owned(), colour: "--violet", points: of_load(|load| load.waiting) },
        Curve {
            name: "in the workers' queues".to_owned(),
            colour: "--warm",
            points: of_samples(|sample| sample.queued),
        },
        Curve {
            name: "in the longest of them".to_owned(),
            colour: "--bad",
            points: of_samples(|sample| u64::from(sample.longest)),
        },
    ];
    let most = curves.iter().flat_map(|curve| &curve.points).map(|point| point.1).fold(1.0, f64::max);
    chart(out, story, &curves, most, false, false);
}

// ---- steals ----

fn steals(out: &mut String, story: &Story<'_>, outcome: &Outcome) {
    out.push_str("<h2>Who stole from whom</h2>\n");
    if story.moves.is_empty() {
        out.push_str("<p>Nobody stole anything.</p>\n");
        return;
    }
    let nodes = story.deeds.len();
    let together = nodes.div_ceil(MOST_GROUPS).max(1);
    let groups = nodes.div_ceil(together);
    let mut matrix = vec![vec![0u64; groups]; groups];
    let mut pairs: filch_core::map::Map<(u32, u32), u64> = filch_core::map::Map::default();
    for &(_, _, from, to) in &story.moves {
        matrix[from as usize / together][to as usize / together] += 1;
        *pairs.entry((from, to)).or_insert(0) += 1;
    }
    let each = if together > 1 { format!(" A row is {together} workers.") } else { String::new() };
    let steals = &outcome.steals;
    let _ = writeln!(
        out,
        "<p>{} tasks changed hands: rows gave, columns took.{each} Of {} requests {} brought something, {} were refused, {} timed out, {} did not get through.</p>",
        thousands(steals.moved),
        thousands(steals.attempts),
        thousands(steals.successes),
        thousands(steals.rejections),
        thousands(steals.timeouts),
        thousands(steals.network_errors)
    );
    out.push_str("<div class=\"two\">\n");
    draw_matrix(out, &matrix, together, nodes);
    let mut top: Vec<((u32, u32), u64)> = pairs.into_iter().collect();
    top.sort_by_key(|entry| (std::cmp::Reverse(entry.1), entry.0));
    out.push_str("<div class=\"wrap\"><table class=\"pairs\"><thead><tr>");
    for head in ["tasks", "from", "to"] {
        let _ = write!(out, "<th style=\"padding:8px 12px\">{head}</th>");
    }
    out.push_str("</tr></thead><tbody>\n");
    for ((from, to), count) in top.into_iter().take(PAIRS) {
        let _ = writeln!(out, "<tr><td>{}</td><td>worker {from}</td><td>worker {to}</td></tr>", thousands(count));
    }
    out.push_str("</tbody></table></div>\n</div>\n");
}

fn draw_matrix(out: &mut String, matrix: &[Vec<u64>], together: usize, nodes: usize) {
    let groups = matrix.len();
    let cell = (520.0 / groups as f64).clamp(16.0, 64.0);
    let (left, top) = (86.0, 74.0);
    let size = cell * groups as f64;
    let most = matrix.iter().flatten().copied().max().unwrap_or(1).max(1) as f64;
    let name = |group: usize| {
        let (first, last) = (group * together, (group * together + together - 1).min(nodes - 1));
        if together > 1 { format!("{first}–{last}") } else { format!("worker {first}") }
    };
    let (width, height) = (n(left + size + 10.0), n(top + size + 10.0));
    let _ = write!(
        out,
        "<figure><svg viewBox=\"0 0 {width} {height}\" style=\"min-width:0;max-width:{width}px\" role=\"img\">"
    );
    for group in 0..groups {
        let middle = (group as f64 + 0.5) * cell;
        let (y, x) = (n(top + middle + 4.0), n(left + middle));
        let _ = write!(
            out,
            "<text class=\"tick\" x=\"{}\" y=\"{y}\" text-anchor=\"end\">{}</text>",
            n(left - 8.0),
            name(group)
        );
        let turn = format!("rotate(-50 {x} {})", n(top - 8.0));
        let _ = write!(
            out,
            "<text class=\"tick\" x=\"{x}\" y=\"{}\" transform=\"{turn}\">{}</text>",
            n(top - 8.0),
            name(group)
        );
    }
    for (from, row) in matrix.iter().enumerate() {
        for (to, &count) in row.iter().enumerate() {
            let (x, y, side) = (n(left + to as f64 * cell), n(top + from as f64 * cell), n(cell - 1.5));
            let share = if count == 0 { 0.0 } else { 0.15 + 0.85 * (count as f64 / most).sqrt() };
            let fill = if count == 0 { "var(--card)" } else { "var(--warm)" };
            let opacity = if count == 0 { "1".to_owned() } else { n(share) };
            let tip = format!("{} to {}: {}", name(from), name(to), thousands(count));
            let _ = write!(
                out,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{side}\" height=\"{side}\" rx=\"2\" fill=\"{fill}\" fill-opacity=\"{opacity}\"><title>{tip}</title></rect>"
            );
            if count > 0 && cell >= 26.0 {
                let (x, y) = (n(left + (to as f64 + 0.5) * cell - 0.7), n(top + (from as f64 + 0.5) * cell + 3.6));
                let words = if count > 9999 { format!("{}k", count / 1000) } else { count.to_string() };
                let _ = write!(
                    out,
                    "<text class=\"tick\" x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" style=\"fill:var(--ink)\">{words}</text>"
                );
            }
        }
    }
    out.push_str("</svg></figure>\n");
}

// ---- workers ----

fn workers(out: &mut String, story: &Story<'_>) {
    out.push_str("<h2>Workers</h2>\n");
    let span_s = story.span_s();
    let cluster = &story.world.setting().cluster;
    let share = |node: usize| {
        let class = &cluster[story.class_of(node as u32)];
        story.deeds[node].busy.as_secs_f64() / (span_s * f64::from(class.slots()))
    };
    let mut shown: Vec<usize> = (0..story.deeds.len()).collect();
    if shown.len() > MOST_WORKERS {
        let shares: Vec<f64> = shown.iter().map(|node| share(*node)).collect();
        shown.sort_by(|a, b| shares[*b].total_cmp(&shares[*a]));
        let half = MOST_WORKERS / 2;
        shown.drain(half..shown.len() - half);
        shown.sort_unstable();
        let all = thousands(story.deeds.len() as u64);
        let _ = writeln!(
            out,
            "<p>The {half} busiest and the {half} least busy of {all} workers. A click on a column sorts.</p>"
        );
    } else {
        out.push_str("<p>A click on a column sorts.</p>\n");
    }
    out.push_str("<div class=\"wrap\"><table class=\"sortable\"><thead><tr>");
    for head in ["worker", "class", "busy", "runs", "stolen", "given away", "failed", "lost", "deaths"] {
        let _ = write!(out, "<th scope=\"col\"><button type=\"button\">{head}</button></th>");
    }
    out.push_str("</tr></thead><tbody>\n");
    for node in shown {
        let deeds = &story.deeds[node];
        let share = 100.0 * share(node);
        let class = short(&cluster[story.class_of(node as u32)].name, 40);
        let _ = write!(out, "<tr><td data-v=\"{node}\">{node}</td><td>{class}</td>");
        let _ = write!(out, "<td class=\"bar\" style=\"--share:{share:.1}%\" data-v=\"{share:.3}\">{share:.1}%</td>");
        for count in [deeds.runs, deeds.stole, deeds.gave, deeds.failed, deeds.lost, deeds.deaths] {
            let _ = write!(out, "<td data-v=\"{count}\">{}</td>", thousands(count));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}
