//! An HTTP server that searches in an index file. README.md has the interface and the reasons.

mod arguments;
mod bodies;
mod failure;
mod index_file;
mod metrics;
mod routes;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::oneshot;
use warpann::{BatcherBuilder, IndexWriter};

use arguments::Arguments;
use index_file::IndexFile;
use metrics::Metrics;
use routes::Server;

/// The longest time from the signal to stop until the last answer. A client that never ends its request would keep the
/// server for ever.
const GRACE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    match Arguments::of_process().map_err(Into::into).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("warpann-server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let (file, index) = IndexFile::open(arguments.index, arguments.placement)?;
    let (dim, metrics) = (index.dim(), Arc::new(Metrics::default()));
    let writer = IndexWriter::new(index);
    let reader = writer.reader();
    let batcher = BatcherBuilder::new().waiting(arguments.waiting).serve(reader.clone())?;
    let server = Arc::new(Server { batcher, reader, metrics: Arc::clone(&metrics), dim, max_k: arguments.max_k });
    file.watch(writer, metrics)?;

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(serve(&arguments.listen, Arc::clone(&server)));
    // Waits for the requests that the batcher has accepted.
    server.batcher.close();
    result
}

/// Answers requests until the process gets a signal to stop, and then those that have begun.
async fn serve(listen: &str, server: Arc<Server>) -> Result<(), Box<dyn Error>> {
    let stop = stop_signal()?;
    let listener = TcpListener::bind(listen).await.map_err(|error| format!("{listen}: {error}"))?;
    println!("listening on http://{}", listener.local_addr()?);

    let (stopping, stopped) = oneshot::channel();
    let stop = async move {
        stop.await;
        eprintln!("stopping: no new connections; requests that have begun are answered");
        let _ = stopping.send(());
    };
    let serving = axum::serve(listener, routes::router(server)).with_graceful_shutdown(stop);
    let too_late = async {
        // The sender sends before it is dropped.
        let _ = stopped.await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        result = serving.into_future() => Ok(result?),
        () = too_late => Err(format!("requests have not ended in {} s", GRACE.as_secs()).into()),
    }
}

/// A future that ends when the process gets SIGTERM or SIGINT (ctrl-c). From this call on the signals no longer end the
/// process.
#[cfg(unix)]
fn stop_signal() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// A future that ends when the process gets ctrl-c.
#[cfg(not(unix))]
fn stop_signal() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    Ok(async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}
