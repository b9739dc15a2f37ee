//! What machines that watch over a cluster ask over HTTP: figures for Prometheus, and whether it lives. Tells, and changes
//! nothing; nothing secret is told.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::coordinator::Observer;
use crate::view::StatsView;

/// Figures of the machine that can fall as well as rise, or are no counts.
const GAUGES: [&str; 11] = [
    "success_rate",
    "avg_task_wait_time",
    "max_task_wait_time",
    "agent_count",
    "total_queued",
    "busy_agents",
    "idle_agents",
    "running",
    "blocked",
    "unschedulable",
    "retrying",
];

/// Listens for those who ask; the address it really has, and what ends it.
///
/// # Errors
/// If nothing can be bound there.
pub async fn listen(address: SocketAddr, observer: Observer) -> std::io::Result<(SocketAddr, AbortHandle)> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    let router =
        Router::new().route("/metrics", get(metrics)).route("/health", get(health)).with_state(Arc::new(observer));
    let task = tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the admin address is no longer served");
        }
    });
    Ok((bound, task.abort_handle()))
}

async fn health(State(observer): State<Arc<Observer>>) -> Response {
    match observer.stats().await {
        Some(_) => "ok\n".into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "the coordinator has ended\n").into_response(),
    }
}

async fn metrics(State(observer): State<Arc<Observer>>) -> Response {
    let Some(stats) = observer.stats().await else {
        return (StatusCode::SERVICE_UNAVAILABLE, "the coordinator has ended\n").into_response();
    };
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match text(stats) {
        Ok(text) => ([(header::CONTENT_TYPE, kind)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The figures as Prometheus reads them.
fn text(stats: StatsView) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("filch");
    registry.register_collector(Box::new(Figures(stats)));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Figures(StatsView);

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Figures(stats) = self;
        let mut gauge = |name: &str, help: &str, value: f64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        #[allow(clippy::cast_precision_loss)]
        let whole = |value: u64| value as f64;
        gauge("epoch", "Which life of the coordinator this is", whole(stats.epoch))?;
        gauge("uptime_seconds", "For how long the coordinator has lived", stats.uptime_s)?;
        gauge("workers_connected", "Workers that are connected", whole(stats.workers as u64))?;
        gauge("tasks_unsettled", "Tasks that are not settled", whole(stats.unsettled))?;
        gauge("store_pending_bytes", "Bytes that wait for the store", whole(stats.store_pending_bytes))?;
        let empty = serde_json::Map::new();
        let figures = stats.metrics.as_object().unwrap_or(&empty);
        for (name, value) in figures.iter().filter(|(name, _)| GAUGES.contains(&name.as_str())) {
            gauge(name, &words(name), value.as_f64().unwrap_or(0.0))?;
        }
        let mut counter = |name: &str, help: &str, value: u64| {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)
        };
        for (name, value) in figures.iter().filter(|(name, _)| !GAUGES.contains(&name.as_str())) {
            counter(name, &words(name), value.as_u64().unwrap_or(0))?;
        }
        counter("tasks_found_missing", "Tasks that were not where they should have been", stats.found_missing)?;
        counter("peer_messages_relayed", "Messages between workers that went through the coordinator", stats.relayed)?;
        let steals = stats.steals.as_object().unwrap_or(&empty);
        for (name, value) in steals.iter().filter_map(|(name, value)| Some((name, value.as_u64()?))) {
            counter(&format!("peer_steal_{name}"), &words(&format!("peer_steal_{name}")), value)?;
        }
        Ok(())
    }
}

fn words(name: &str) -> String {
    name.replace('_', " ")
}
