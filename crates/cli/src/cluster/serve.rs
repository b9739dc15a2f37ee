//! `filch serve`: the coordinator of a cluster.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use filch_core::Config;
use filch_node::access::Access;
use filch_node::admin;
use filch_node::coordinator::{Coordinator, FOLD_AFTER, Failure, Options};
use filch_node::door::Door;
use filch_node::secure::Secrets;

use crate::interrupt::Interrupts;
use crate::job::Lasting;
use crate::settings::{ConfigArgs, Joining};
use crate::{output, runtime};

/// The port if nothing is said.
const PORT: u16 = 7433;

/// Run the coordinator of a cluster.
///
/// Keeps everything in a directory and goes on with what is there. Writes an access file, which workers and clients need
/// and nobody else may read. Connections are encrypted.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  filch serve                                        in ~/.filch, for this machine and others
  filch serve --dir /srv/filch --config filch.yaml --admin 127.0.0.1:9433
  filch serve --listen 127.0.0.1:0 --plain           on this machine only, without encryption
  scp ~/.filch/access.json worker-1:.filch/          and then `filch worker` there")]
pub(crate) struct Args {
    /// Where everything is kept; $FILCH_DIR or ~/.filch if nothing is said.
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    dir: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
    /// Where it listens. Port 0 is the port of the last time, or a free one.
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = SocketAddr::from(([0, 0, 0, 0], PORT)))]
    listen: SocketAddr,
    /// Where workers and clients reach it, if that is another address; can be repeated.
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Vec<String>,
    /// Where the access file is written; access.json in the directory if nothing is said.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    access: Option<PathBuf>,
    /// Without encryption; only on a loopback address.
    #[arg(long)]
    plain: bool,
    /// Where figures for Prometheus are served, at /metrics.
    #[arg(long, value_name = "ADDRESS:PORT")]
    admin: Option<SocketAddr>,
    /// How long results, outputs and what became of tasks are kept.
    #[arg(long, value_name = "DURATION", default_value = "7d")]
    retention: Lasting,
    /// The journal is folded into a snapshot when it has so many bytes.
    #[arg(long, value_name = "BYTES", hide = true, default_value_t = FOLD_AFTER)]
    fold_after: usize,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.plain && !args.listen.ip().is_loopback() {
        let message = format!("--plain listens on a loopback address only, and {} is none", args.listen.ip());
        output::error(&message, Some("add --listen 127.0.0.1:0, or leave --plain out"));
        return Ok(ExitCode::from(2));
    }
    let config = match args.config.load(Joining::AtAnyTime) {
        Ok(config) => config,
        Err(status) => return Ok(status),
    };
    output::log_to_stderr();
    filch_node::door::permit_many();
    runtime::run(serve(args, config))
}

async fn serve(args: &Args, config: Config) -> anyhow::Result<ExitCode> {
    let directory = args.dir.clone().unwrap_or_else(filch_node::access::usual_directory);
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make the directory `{}`", directory.display()))?;
    let access_path = args.access.clone().unwrap_or_else(|| directory.join("access.json"));
    let retention = Duration::from_nanos(args.retention.0.0);
    // The store first: whoever is refused there must not touch the access file of whoever has it.
    let mut coordinator =
        Coordinator::start(Options { config, retention, fold_after: args.fold_after, ..Options::new(&directory) })
            .await?;
    let secrets = Secrets::load_or_create(&directory.join("secrets.json"))?;
    let identity = (!args.plain).then(|| secrets.identity.clone());
    let pin = identity.as_ref().map(|identity| identity.pin());
    let door = Arc::new(Door::new(identity, secrets.token.clone()));
    let bound = listen(&mut coordinator, args.listen, &access_path, door).await?;
    let addresses = if args.advertise.is_empty() { reachable(bound) } else { args.advertise.clone() };
    let access = Access { addresses, pin, token: secrets.token.clone() };
    access.write(&access_path)?;
    let mut text = format!(
        "listening on {bound}, reached at {}\naccess file: {}\n",
        access.addresses.join(", "),
        access_path.display()
    );
    let mut interrupts = Interrupts::new()?;
    let _admin = match args.admin {
        Some(address) => {
            let (bound, handle) = admin::listen(address, coordinator.observer())
                .await
                .with_context(|| format!("cannot listen on {address}"))?;
            text += &format!("metrics: http://{bound}/metrics\n");
            Some(handle)
        }
        None => None,
    };
    output::print(&text)?;
    // It ends by itself only if the store fails; whoever asks then hears it from `ended`.
    tokio::select! {
        _ = interrupts.next() => {}
        () = failed(&coordinator) => {}
    }
    coordinator.stop().await?;
    Ok(ExitCode::SUCCESS)
}

/// Waits until the coordinator no longer answers.
async fn failed(coordinator: &Coordinator) {
    let observer = coordinator.observer();
    while observer.stats().await.is_some() {
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// Listens; on the port of the last time if none is asked for, so that workers find it again.
async fn listen(
    coordinator: &mut Coordinator,
    address: SocketAddr,
    access: &Path,
    door: Arc<Door>,
) -> anyhow::Result<SocketAddr> {
    let last = || Access::read(access).ok()?.addresses.first()?.rsplit_once(':')?.1.parse().ok();
    if address.port() == 0
        && let Some(port) = last()
        && let Ok(bound) = coordinator.listen(SocketAddr::new(address.ip(), port), Arc::clone(&door)).await
    {
        return Ok(bound);
    }
    coordinator.listen(address, door).await.map_err(|failure| {
        let taken = matches!(&failure, Failure::Network { source, .. } if source.kind() == ErrorKind::AddrInUse);
        let error = anyhow::Error::new(failure);
        if !taken {
            return error;
        }
        error.context(format!("is another coordinator there? --listen {}:0 takes a free port", address.ip()))
    })
}

/// Where others reach an address of this machine.
fn reachable(bound: SocketAddr) -> Vec<String> {
    if !bound.ip().is_unspecified() {
        return vec![bound.to_string()];
    }
    let outward = || -> Option<IpAddr> {
        let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
        // Nothing is sent; the system only says which of its addresses it would use. The address is one for documentation.
        socket.connect(("192.0.2.1", 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let ip = outward().unwrap_or(IpAddr::from([127, 0, 0, 1]));
    vec![SocketAddr::new(ip, bound.port()).to_string()]
}
