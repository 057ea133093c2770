//! The page, inside the program: no request ever becomes a file name.

use axum::{
    body::{Body, Bytes},
    http::header,
    response::{IntoResponse, Response},
};

/// The three files of the viewer's page.
#[derive(Clone, Debug)]
pub struct Page {
    pub html: Bytes,
    pub script: Bytes,
    pub style: Bytes,
}

impl Page {
    /// As it was when the program was built.
    pub fn embedded() -> Page {
        let page = |bytes| Bytes::from_static(bytes);
        Page {
            html: page(include_bytes!("../../../web/dist/index.html")),
            script: page(include_bytes!("../../../web/dist/app.js")),
            style: page(include_bytes!("../../../web/dist/app.css")),
        }
    }

    /// Names below the token; that of the page itself is empty.
    pub(crate) fn assets(self) -> [Asset; 3] {
        let asset = |name, kind, bytes| Asset { name, kind, bytes };
        [
            asset("", "text/html; charset=utf-8", self.html),
            asset("app.js", "text/javascript; charset=utf-8", self.script),
            asset("app.css", "text/css; charset=utf-8", self.style),
        ]
    }
}

impl Default for Page {
    fn default() -> Page {
        Page::embedded()
    }
}

#[derive(Clone)]
pub(crate) struct Asset {
    pub name: &'static str,
    pub kind: &'static str,
    pub bytes: Bytes,
}

impl Asset {
    pub fn response(self) -> Response {
        let kind = [(header::CONTENT_TYPE, self.kind)];
        (kind, Body::from(self.bytes)).into_response()
    }
}
