//! The pages of the server, and their handlers.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use warpann::{Any, AnyIndex, Batcher, IndexReader};

use crate::bodies::{Search, encode, most_bytes};
use crate::failure::Failure;
use crate::metrics::{Metrics, Outcome};

/// The batcher and the numbers that all requests share.
pub struct Server {
    pub batcher: Batcher<Any<f32>>,
    /// The versions in which the batcher searches.
    pub reader: IndexReader<AnyIndex<f32>>,
    pub metrics: Arc<Metrics>,
    /// Dimension of every version.
    pub dim: usize,
    /// Largest k of a request.
    pub max_k: usize,
}

pub fn router(server: Arc<Server>) -> Router {
    let measure = from_fn_with_state(Arc::clone(&server), measured);
    Router::new()
        .route("/search", post(search).layer(measure))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .fallback(|| async { Failure::of_client(StatusCode::NOT_FOUND, "there is no such page") })
        .method_not_allowed_fallback(|| async {
            Failure::of_client(StatusCode::METHOD_NOT_ALLOWED, "the page has another method")
        })
        .layer(DefaultBodyLimit::max(most_bytes(server.dim)))
        .with_state(server)
}

/// Counts a search, from its headers to its answer. A client that leaves drops this future, which counts as
/// cancelled.
async fn measured(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let running = server.metrics.begin();
    let response = next.run(request).await;
    running.end(response.extensions().get().copied().unwrap_or(Outcome::BadRequest));
    response
}

async fn search(
    State(server): State<Arc<Server>>,
    headers: HeaderMap,
    uri: Uri,
    body: Result<Bytes, BytesRejection>,
) -> Result<impl IntoResponse, Failure> {
    let search = Search::decode(&headers, &uri, &body?)?;
    let (k, form) = (search.options.k, search.form);
    if k > server.max_k {
        return Err(Failure::bad_request(format!("k = {k}; the largest k of this server is {}", server.max_k)));
    }
    // The batcher searches in this version, or in a later one if that is published before the search begins.
    let version = server.reader.version();
    let found = server.batcher.submit(search.into_request())?.await?;
    Ok((Extension(Outcome::Answered), encode(&found, version, form)))
}

async fn health(State(server): State<Arc<Server>>) -> impl IntoResponse {
    let (version, index) = server.reader.current_with_version();
    Json(serde_json::json!({
        "status": "ok",
        "kind": index.kind().name(),
        "metric": index.metric().to_string(),
        "vectors": index.len(),
        "dimension": index.dim(),
        "device": index.device(),
        "version": version,
    }))
}

async fn metrics(State(server): State<Arc<Server>>) -> impl IntoResponse {
    let (version, index) = server.reader.current_with_version();
    let text = server.metrics.text(&server.batcher.statistics(), version, index.len());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}
