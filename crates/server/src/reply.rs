//! Answers on the wire: JSON, rasters, refusals.
//!
//! A raster is the length of a JSON header (u32, little-endian), the header, zero
//! bytes up to a multiple of 4 from the start, then f32 values (little-endian)
//! row by row. The header says how many rows and columns there are.

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use index::KernelQueryError;
use serde::Serialize;
use serde_json::json;

const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");
const RASTER: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// A finished answer; bytes, so that serialising happens off the event loop.
pub(crate) enum Reply {
    Json(Vec<u8>),
    Raster(Vec<u8>),
}

/// Why there is no answer, in a sentence for the page to show.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// 400: ask differently.
    BadInput(String),
    /// 403
    Forbidden(String),
    /// 404: there is no such run, evaluation or offset.
    Missing(String),
    /// 409: the same page has asked something else since.
    Replaced(String),
    /// 413
    TooLong(String),
    /// 500: not the asker's fault.
    Failed(String),
}

impl From<KernelQueryError> for Refusal {
    fn from(error: KernelQueryError) -> Refusal {
        let sentence = error.to_string();
        match error {
            KernelQueryError::Absent { .. } => Refusal::Missing(sentence),
            KernelQueryError::Unreadable(_) => Refusal::Failed(sentence),
        }
    }
}

impl Reply {
    pub fn json(value: &impl Serialize) -> Result<Reply, Refusal> {
        Ok(Reply::Json(to_json(value)?))
    }

    pub fn raster(head: &impl Serialize, values: &[f32]) -> Result<Reply, Refusal> {
        let head = to_json(head)?;
        let head_length = u32::try_from(head.len())
            .map_err(|_| Refusal::Failed("the header of the raster is too long".to_owned()))?;
        let padded = (4 + head.len()).next_multiple_of(4);
        let mut bytes = Vec::with_capacity(padded + values.len() * 4);
        bytes.extend_from_slice(&head_length.to_le_bytes());
        bytes.extend_from_slice(&head);
        bytes.resize(padded, 0);
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        Ok(Reply::Raster(bytes))
    }
}

fn to_json(value: &impl Serialize) -> Result<Vec<u8>, Refusal> {
    serde_json::to_vec(value)
        .map_err(|error| Refusal::Failed(format!("the answer cannot be written as JSON: {error}")))
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let (kind, bytes) = match self {
            Reply::Json(bytes) => (JSON, bytes),
            Reply::Raster(bytes) => (RASTER, bytes),
        };
        ([(header::CONTENT_TYPE, kind)], Body::from(bytes)).into_response()
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, sentence) = match self {
            Refusal::BadInput(sentence) => (StatusCode::BAD_REQUEST, sentence),
            Refusal::Forbidden(sentence) => (StatusCode::FORBIDDEN, sentence),
            Refusal::Missing(sentence) => (StatusCode::NOT_FOUND, sentence),
            Refusal::Replaced(sentence) => (StatusCode::CONFLICT, sentence),
            Refusal::TooLong(sentence) => (StatusCode::PAYLOAD_TOO_LARGE, sentence),
            Refusal::Failed(sentence) => (StatusCode::INTERNAL_SERVER_ERROR, sentence),
        };
        let body = json!({ "error": sentence }).to_string();
        (status, [(header::CONTENT_TYPE, JSON)], body).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_raster_start_at_a_multiple_of_four() {
        for text in ["", "a", "ab", "abc", "abcd"] {
            let Ok(Reply::Raster(bytes)) = Reply::raster(&json!({ "t": text }), &[1.5, f32::NAN])
            else {
                panic!("no raster");
            };
            let length = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
            let head: serde_json::Value = serde_json::from_slice(&bytes[4..4 + length]).unwrap();
            assert_eq!(head["t"], text);
            let start = (4 + length).next_multiple_of(4);
            assert_eq!(bytes.len(), start + 8);
            assert!(bytes[4 + length..start].iter().all(|b| *b == 0));
            assert_eq!(bytes[start..start + 4], 1.5f32.to_le_bytes());
        }
    }
}
