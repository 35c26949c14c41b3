//! The bodies of a search, as JSON and as bytes: how a request is decoded, and how a result is encoded.

use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::Query;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use warpann::{NONE, Neighbors, Request, SearchOptions};

use crate::failure::Failure;

const BYTES: &str = "application/octet-stream";
/// The header of a binary answer that has the version of the index.
const VERSION: &str = "x-index-version";

/// The largest body of a search in vectors of `dim` components: 64 bytes for each as text, and the options.
pub fn most_bytes(dim: usize) -> usize {
    dim.saturating_mul(64).saturating_add(4096)
}

/// The form of a request, which is also that of its answer.
#[derive(Clone, Copy)]
pub enum Form {
    Json,
    Bytes,
}

/// A search as a client describes it.
pub struct Search {
    pub vector: Vec<f32>,
    pub options: Options,
    pub form: Form,
}

/// The options of a binary request, in the query string of the URL.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    #[serde(default = "default_k")]
    pub k: usize,
    probes: Option<usize>,
    beam: Option<usize>,
    deadline_ms: Option<u64>,
}

fn default_k() -> usize {
    10
}

/// The options beside the vector. They are repeated here because serde cannot both flatten [`Options`] and refuse
/// unknown fields. A misspelt option would change a search in silence.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonSearch {
    vector: Vec<f32>,
    #[serde(default = "default_k")]
    k: usize,
    probes: Option<usize>,
    beam: Option<usize>,
    deadline_ms: Option<u64>,
}

impl Search {
    /// Decodes a request by its content type.
    ///
    /// # Errors
    /// 400 for a body or options that are malformed; 415 for another content type.
    pub fn decode(headers: &HeaderMap, uri: &Uri, body: &[u8]) -> Result<Self, Failure> {
        let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match &essence[..] {
            "application/json" => {
                let JsonSearch { vector, k, probes, beam, deadline_ms } =
                    serde_json::from_slice(body).map_err(|error| Failure::bad_request(format!("body: {error}")))?;
                Ok(Self { vector, options: Options { k, probes, beam, deadline_ms }, form: Form::Json })
            }
            BYTES => {
                let Query(options) =
                    Query::try_from_uri(uri).map_err(|error| Failure::bad_request(error.body_text()))?;
                let (components, rest) = body.as_chunks::<4>();
                if !rest.is_empty() {
                    let message = format!("{} bytes are no whole number of f32 components", body.len());
                    return Err(Failure::bad_request(message));
                }
                let vector = components.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                Ok(Self { vector, options, form: Form::Bytes })
            }
            _ => Err(Failure::of_client(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                format!("content type '{content_type}'; application/json or {BYTES} is needed"),
            )),
        }
    }

    /// The request for the batcher. The time of the deadline begins now. A deadline beyond the range of the clock is
    /// none.
    pub fn into_request(self) -> Request<f32> {
        let Options { k, probes, beam, deadline_ms } = self.options;
        let request = Request::new(self.vector, k).options(SearchOptions::new().probes(probes).beam(beam));
        match deadline_ms.and_then(|time| Instant::now().checked_add(Duration::from_millis(time))) {
            Some(deadline) => request.deadline(deadline),
            None => request,
        }
    }
}

#[derive(Serialize)]
struct JsonAnswer<'a> {
    ids: &'a [u64],
    distances: &'a [f32],
    version: u64,
}

/// Encodes a result. JSON has the neighbours that exist. Bytes have k ids and then k distances, where the id of a
/// neighbour that does not exist is [`NONE`].
pub fn encode(found: &Neighbors, version: u64, form: Form) -> Response {
    match form {
        Form::Json => {
            let count = found.ids.iter().position(|&id| id == NONE).unwrap_or(found.ids.len());
            let (ids, distances) = (&found.ids[..count], &found.distances[..count]);
            Json(JsonAnswer { ids, distances, version }).into_response()
        }
        Form::Bytes => {
            let ids = found.ids.iter().flat_map(|id| id.to_le_bytes());
            let bytes: Vec<u8> = ids.chain(found.distances.iter().flat_map(|value| value.to_le_bytes())).collect();
            ([(header::CONTENT_TYPE.as_str(), BYTES), (VERSION, &version.to_string())], bytes).into_response()
        }
    }
}
