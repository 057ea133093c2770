//! Who may ask: the checks that every request passes, and the headers that every
//! response carries.
//!
//! In this order, before any routing:
//! 1. The `Host` is ours, by address or as `localhost`; else 403. A page of
//!    another site whose name was made to point at 127.0.0.1 (DNS rebinding)
//!    sends that site's name here.
//! 2. The first segment of the path is the token; else 404 without a word, the
//!    same as for a page that does not exist.
//! 3. The method is GET, or POST for a query; else 405.
//! 4. A POST carries `x-tensorscope: 1`; else 403. No form can set a header, and
//!    a script of another site would need our permission, which nobody gives.
//!
//! Responses allow the browser nothing but our own script, style, images and
//! data. Refusals carry the same headers.

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::{reply::Refusal, token::Token};

/// Must be `1` on a POST.
pub const POST_HEADER: &str = "x-tensorscope";

const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
];

/// What requests are held against.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    pub token: Token,
    pub port: u16,
}

/// The outermost layer of the router.
pub(crate) async fn check(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let mut response = match guard.refuse(&request) {
        Some(refusal) => refusal,
        None => next.run(request).await,
    };
    for (name, value) in HEADERS {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

impl Guard {
    fn refuse(&self, request: &Request) -> Option<Response> {
        if !self.is_own_host(request.headers()) {
            return Some(StatusCode::FORBIDDEN.into_response());
        }
        let path = request.uri().path().strip_prefix('/').unwrap_or_default();
        let first = path.split('/').next().unwrap_or_default();
        if !self.token.is(first) {
            return Some(not_found());
        }
        match *request.method() {
            Method::GET => None,
            Method::POST if has_post_header(request.headers()) => None,
            Method::POST => Some(
                Refusal::Forbidden(format!(
                    "a POST needs the header `{POST_HEADER}: 1`; ask from the viewer's own page"
                ))
                .into_response(),
            ),
            _ => Some(StatusCode::METHOD_NOT_ALLOWED.into_response()),
        }
    }

    fn is_own_host(&self, headers: &HeaderMap) -> bool {
        let mut hosts = headers.get_all(header::HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return false;
        };
        let port = self.port;
        [format!("127.0.0.1:{port}"), format!("localhost:{port}")]
            .iter()
            .any(|own| host.as_bytes().eq_ignore_ascii_case(own.as_bytes()))
    }
}

/// The one answer to everything that is not here, with nothing to learn from it.
pub(crate) fn not_found() -> Response {
    (StatusCode::NOT_FOUND, Body::empty()).into_response()
}

fn has_post_header(headers: &HeaderMap) -> bool {
    headers
        .get(POST_HEADER)
        .is_some_and(|value| value.as_bytes() == b"1")
}
