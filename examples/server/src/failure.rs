//! The error of a request, as HTTP tells it.

use axum::extract::rejection::BytesRejection;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use warpann::{Error, Refusal};

use crate::metrics::Outcome;

/// A request that got no result: the status, and a message for the body.
pub struct Failure {
    pub status: StatusCode,
    pub outcome: Outcome,
    pub message: String,
}

impl Failure {
    /// A fault of the client.
    pub fn of_client(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, outcome: Outcome::BadRequest, message: message.into() }
    }

    /// Status 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::of_client(StatusCode::BAD_REQUEST, message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (status, outcome) = match &error {
            // Not 429: the server is busy, whoever the client is.
            Error::Refused(Refusal::Full { .. }) => (StatusCode::SERVICE_UNAVAILABLE, Outcome::Full),
            Error::Refused(Refusal::Expired) => (StatusCode::GATEWAY_TIMEOUT, Outcome::Expired),
            Error::Refused(_) => (StatusCode::SERVICE_UNAVAILABLE, Outcome::Closed),
            error if error.is_input() => (StatusCode::BAD_REQUEST, Outcome::BadRequest),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, Outcome::Failed),
        };
        if outcome == Outcome::Failed {
            eprintln!("a search failed: {error}");
        }
        Self { status, outcome, message: error.to_string() }
    }
}

/// A body that did not arrive: too long (413), or cut (400).
impl From<BytesRejection> for Failure {
    fn from(rejection: BytesRejection) -> Self {
        Self::of_client(rejection.status(), rejection.body_text())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let body = Json(serde_json::json!({ "error": self.message }));
        let mut response = (self.status, Extension(self.outcome), body).into_response();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
        }
        response
    }
}
