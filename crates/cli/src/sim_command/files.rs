//! The files that a simulation leaves behind: pictures of what happened, and its workload.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use filch_sim::{Outcome, World, picture, trace};

use crate::job::Usage;
use crate::{output, packing};

/// Which files, and where.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct FileArgs {
    /// Write what happened for Perfetto (ui.perfetto.dev) or chrome://tracing; - is standard output.
    #[arg(long, value_name = "OUT.json", value_hint = clap::ValueHint::FilePath)]
    trace: Option<PathBuf>,
    /// Write a Gantt chart; - is standard output.
    #[arg(long, value_name = "OUT.svg", value_hint = clap::ValueHint::FilePath)]
    gantt: Option<PathBuf>,
    /// Write a report, a page that needs nothing else; - is standard output.
    #[arg(long, value_name = "OUT.html", value_hint = clap::ValueHint::FilePath)]
    report: Option<PathBuf>,
    /// Write the workload as filch trace v1, gzipped if the name ends with .gz; - is standard output.
    #[arg(long, value_name = "OUT.jsonl[.gz]", value_hint = clap::ValueHint::FilePath)]
    export: Option<PathBuf>,
}

/// What goes into a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Trace,
    Gantt,
    Report,
    Export,
}

/// Files that can be written.
pub(crate) struct Files(Vec<(What, PathBuf, Option<File>)>);

fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

impl FileArgs {
    fn all(&self) -> Vec<(What, &PathBuf)> {
        let all = [
            (What::Trace, &self.trace),
            (What::Gantt, &self.gantt),
            (What::Report, &self.report),
            (What::Export, &self.export),
        ];
        all.into_iter().filter_map(|(what, path)| Some((what, path.as_ref()?))).collect()
    }

    /// Whether standard output is taken.
    pub(crate) fn use_stdout(&self) -> bool {
        self.all().iter().any(|(_, path)| is_stdout(path))
    }

    /// Opens all of them, and changes none yet. The status to exit with if two are the same, after saying so.
    pub(crate) fn open(&self) -> anyhow::Result<Result<Files, ExitCode>> {
        let all = self.all();
        for (at, (_, path)) in all.iter().enumerate() {
            if all[..at].iter().any(|(_, other)| other == path) {
                let message = format!("two things cannot be written to `{}`", path.display());
                output::error(&message, Some("give each a file of its own"));
                return Ok(Err(ExitCode::from(2)));
            }
        }
        let opened = all.into_iter().map(|(what, path)| {
            if is_stdout(path) {
                return Ok((what, path.clone(), None));
            }
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
            let file = file.map_err(|error| Usage::unwritable(path, &error))?;
            Ok((what, path.clone(), Some(file)))
        });
        Ok(Ok(Files(opened.collect::<anyhow::Result<_>>()?)))
    }
}

impl Files {
    /// Whether any of them shows what happened.
    pub(crate) fn show_what_happened(&self) -> bool {
        self.0.iter().any(|(what, ..)| *what != What::Export)
    }

    /// Writes all of them.
    pub(crate) fn write(self, world: &World, outcome: &Outcome) -> anyhow::Result<()> {
        for (what, path, file) in self.0 {
            let words = || format!("cannot write `{}`", path.display());
            match file {
                Some(file) => {
                    // A pipe or a device has no length to be set.
                    if file.metadata().is_ok_and(|about| about.is_file()) {
                        file.set_len(0).with_context(words)?;
                    }
                    let mut out = BufWriter::new(file);
                    write(what, &path, &mut out, world, outcome).and_then(|()| Ok(out.flush()?)).with_context(words)?;
                }
                None => write(what, &path, &mut std::io::stdout().lock(), world, outcome)
                    .context("cannot write to standard output")?,
            }
        }
        Ok(())
    }
}

fn write(what: What, path: &Path, out: &mut dyn Write, world: &World, outcome: &Outcome) -> anyhow::Result<()> {
    match what {
        What::Trace => picture::perfetto(world, outcome, out)?,
        What::Gantt => out.write_all(picture::gantt(world, outcome).as_bytes())?,
        What::Report => out.write_all(picture::report(world, outcome).as_bytes())?,
        What::Export => {
            let left_out = packing::write(path, out, |out| {
                Ok(trace::write(out, world.workload(), &world.setting().cluster, false)?)
            })?;
            if !left_out.is_empty() {
                output::warning(&format!("filch trace v1 has no words for {}; left out", left_out.join(", ")));
            }
        }
    }
    Ok(())
}
