//! Pictures of what happened in a world: a trace for Perfetto, a Gantt chart and a report.
//!
//! Made from the marks that a world kept. However large the run, what is written stays within a few megabytes: what is left
//! out or drawn together is said in the picture. Names from files are escaped wherever they appear.

mod gantt;
mod perfetto;
mod report;
mod story;
mod svg;

pub use gantt::gantt;
pub use perfetto::perfetto;
pub use report::report;
