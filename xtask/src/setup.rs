//! What the checks need beyond cargo, and how it gets onto the machine.
//!
//! Installs what it can (toolchain components with rustup, packages with apt-get when run as root) and says how for the
//! rest. Never stops a run: the stage that misses its tool says so itself.

use std::time::{Duration, Instant};

use crate::process::{self, Finished};

/// A package manager that hangs must not hold up the checks for longer than this.
const INSTALL_LIMIT: Duration = Duration::from_secs(5 * 60);

/// Something a check needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    /// For the stage `fmt`.
    Rustfmt,
    /// For the stage `clippy`.
    Clippy,
    /// For the stage `instructions`.
    Valgrind,
    /// For the tests of the stage `test` that cut networks.
    Network,
    /// For the deep check `miri`.
    Miri,
    /// The standard library's source, for the deep checks that build it their own way.
    RustSource,
}

/// What the machine offers for installing.
#[derive(Clone, Copy, Debug)]
struct Machine {
    rustup: bool,
    apt_as_root: bool,
}

/// How to get one missing tool.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Run this shell line.
    Install(&'static str),
    /// Nothing can be done from here; a person can.
    Tell(&'static str),
}

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Tool::Rustfmt => "rustfmt",
            Tool::Clippy => "clippy",
            Tool::Valgrind => "valgrind",
            Tool::Network => "iproute2",
            Tool::Miri => "miri",
            Tool::RustSource => "rust-src",
        }
    }

    /// Why a check that needs it cannot be run.
    pub(crate) fn absence(self) -> &'static str {
        match self {
            Tool::Rustfmt => "the toolchain has no rustfmt",
            Tool::Clippy => "the toolchain has no clippy",
            Tool::Valgrind => "there is no valgrind",
            Tool::Network => "there is no ip or no ss, which are in the package iproute2",
            Tool::Miri => "there is no nightly toolchain with the component miri",
            Tool::RustSource => "there is no nightly toolchain with the component rust-src",
        }
    }

    pub(crate) fn is_there(self) -> bool {
        match self {
            Tool::Rustfmt => process::succeeds("cargo", &["fmt", "--version"]),
            Tool::Clippy => process::succeeds("cargo", &["clippy", "--version"]),
            Tool::Valgrind => process::succeeds("valgrind", &["--version"]),
            Tool::Network => process::succeeds("ip", &["-V"]) && process::succeeds("ss", &["-V"]),
            Tool::Miri => process::succeeds("cargo", &["+nightly", "miri", "--version"]),
            Tool::RustSource => process::succeeds(
                "sh",
                &["-c", "[ -f \"$(rustc +nightly --print sysroot)/lib/rustlib/src/rust/library/Cargo.toml\" ]"],
            ),
        }
    }

    fn step(self, machine: Machine) -> Step {
        match self {
            Tool::Rustfmt if machine.rustup => Step::Install("rustup component add rustfmt"),
            Tool::Clippy if machine.rustup => Step::Install("rustup component add clippy"),
            Tool::Valgrind if machine.apt_as_root => Step::Install(
                "export DEBIAN_FRONTEND=noninteractive; \
                 apt-get install --yes valgrind || { apt-get update && apt-get install --yes valgrind; }",
            ),
            Tool::Network if machine.apt_as_root => Step::Install(
                "export DEBIAN_FRONTEND=noninteractive; \
                 apt-get install --yes iproute2 || { apt-get update && apt-get install --yes iproute2; }",
            ),
            Tool::Miri if machine.rustup => Step::Install("rustup component add --toolchain nightly miri"),
            Tool::RustSource if machine.rustup => Step::Install("rustup component add --toolchain nightly rust-src"),
            Tool::Rustfmt => Step::Tell("install the rustfmt of this toolchain, for example the package rustfmt"),
            Tool::Clippy => Step::Tell("install the clippy of this toolchain, for example the package rust-clippy"),
            Tool::Valgrind => {
                Step::Tell("install the package valgrind; without it no benchmark can count instructions")
            }
            Tool::Network => {
                Step::Tell("install the package iproute2; without it the tests that cut networks are skipped")
            }
            Tool::Miri => Step::Tell("install a nightly toolchain with the component miri, for example with rustup"),
            Tool::RustSource => {
                Step::Tell("install a nightly toolchain with the component rust-src, for example with rustup")
            }
        }
    }
}

/// Sees to every tool that is missing.
pub(crate) fn run(tools: &[Tool]) {
    let missing: Vec<Tool> = tools.iter().copied().filter(|tool| !tool.is_there()).collect();
    if missing.is_empty() {
        return;
    }
    let machine = Machine {
        rustup: process::succeeds("rustup", &["--version"]),
        apt_as_root: process::succeeds("sh", &["-c", "[ \"$(id -u)\" = 0 ] && command -v apt-get"]),
    };
    for tool in missing {
        match tool.step(machine) {
            Step::Tell(how) => eprintln!("setup: {} is missing: {how}", tool.name()),
            Step::Install(line) => install(tool, line),
        }
    }
}

fn install(tool: Tool, line: &str) {
    eprintln!("setup: {} is missing, installing it: {line}", tool.name());
    let start = Instant::now();
    match process::shell(line, INSTALL_LIMIT) {
        Ok(Finished { problem: None, .. }) => {
            eprintln!("setup: {} installed in {}", tool.name(), process::duration(start.elapsed()));
        }
        Ok(ref finished @ Finished { problem: Some(ref problem), .. }) => {
            eprintln!("{}\nsetup: that failed ({problem}); going on without {}", finished.tail(20), tool.name());
        }
        Err(error) => eprintln!("setup: that failed ({error:#}); going on without {}", tool.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARE: Machine = Machine { rustup: false, apt_as_root: false };
    const FULL: Machine = Machine { rustup: true, apt_as_root: true };

    #[test]
    fn what_can_be_installed_is() {
        assert_eq!(Tool::Rustfmt.step(FULL), Step::Install("rustup component add rustfmt"));
        assert_eq!(Tool::Clippy.step(FULL), Step::Install("rustup component add clippy"));
        let Step::Install(line) = Tool::Valgrind.step(FULL) else { panic!("valgrind comes from apt-get") };
        assert!(line.contains("apt-get install --yes valgrind"));
    }

    #[test]
    fn for_the_rest_a_person_is_told() {
        for tool in [Tool::Rustfmt, Tool::Clippy, Tool::Valgrind, Tool::Network, Tool::Miri, Tool::RustSource] {
            assert!(matches!(tool.step(BARE), Step::Tell(how) if how.contains("install")), "{}", tool.name());
        }
    }

    #[test]
    fn only_root_touches_system_packages() {
        let machine = Machine { rustup: true, apt_as_root: false };
        assert!(matches!(Tool::Valgrind.step(machine), Step::Tell(_)));
    }
}
