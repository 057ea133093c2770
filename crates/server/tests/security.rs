//! Who is turned away, and what every response says to the browser.

mod support;

use std::net::{IpAddr, TcpStream};

use support::{HOSTILE, Served, recorded};

/// Without a run: the shell is the same.
fn shell() -> Served {
    Served::with(&[])
}

fn served() -> (Served, tempfile::TempDir) {
    let (folder, path) = recorded();
    (Served::with(&[&path]), folder)
}

#[test]
fn without_the_token_nothing_is_here() {
    let server = shell();
    let token = server.token.clone();
    let other = if token.starts_with('0') { "1" } else { "0" };
    for path in [
        "/".to_owned(),
        "/favicon.ico".to_owned(),
        "/api/runs".to_owned(),
        "/app.js".to_owned(),
        "//".to_owned(),
        format!("//{token}/api/runs"),
        format!("/{}/", "0".repeat(32)),
        format!("/{other}{}/api/runs", &token[1..]),
        format!("/{}/api/runs", &token[..31]),
        format!("/{token}0/api/runs"),
        format!("/x/{token}/api/runs"),
        format!("/%{:02x}{}/api/runs", token.as_bytes()[0], &token[1..]),
        format!("/?{token}"),
    ] {
        let reply = server.ask("GET", &path, &[], b"");
        assert_eq!((reply.status, reply.body.len()), (404, 0), "{path}");
    }
    // Not even what is wrong with a request is said.
    let wrong = format!("/{}/api/runs", "0".repeat(32));
    for method in ["POST", "PUT", "OPTIONS"] {
        let reply = server.ask(method, &wrong, &[], b"");
        assert_eq!((reply.status, reply.body.len()), (404, 0), "{method}");
    }
    assert_eq!(server.get("api/runs").status, 200);
}

#[test]
fn an_unknown_page_looks_like_a_wrong_token() {
    let server = shell();
    let mut wrong = server.ask("GET", "/wrong/nothing", &[], b"").headers;
    let mut unknown = server.get("nothing").headers;
    wrong.remove("date");
    unknown.remove("date");
    assert_eq!(wrong, unknown);
}

#[test]
fn other_names_for_this_machine_are_refused() {
    let server = shell();
    let port = server.port;
    let path = format!("/{}/api/runs", server.token);
    let ask = |headers: &[(&str, &str)]| server.ask_exactly("GET", &path, headers, b"").status;
    for own in [format!("127.0.0.1:{port}"), format!("localhost:{port}")] {
        assert_eq!(ask(&[("Host", &own)]), 200, "{own}");
    }
    for other in [
        "evil.example".to_owned(),
        format!("evil.example:{port}"),
        "127.0.0.1".to_owned(),
        "localhost".to_owned(),
        format!("127.0.0.1:{}", port ^ 1),
        format!("127.0.0.1.evil.example:{port}"),
        format!("127.0.0.2:{port}"),
        format!("0.0.0.0:{port}"),
        format!("[::1]:{port}"),
        String::new(),
    ] {
        assert_eq!(ask(&[("Host", &other)]), 403, "{other}");
    }
    assert_eq!(ask(&[]), 403);
    let own = format!("127.0.0.1:{port}");
    assert_eq!(ask(&[("Host", &own), ("Host", "evil.example")]), 403);
}

#[test]
fn an_absolute_address_does_not_hide_the_host() {
    let server = shell();
    let target = format!("http://evil.example/{}/api/runs", server.token);
    let headers = [("Host", "evil.example")];
    assert_eq!(
        server.ask_exactly("GET", &target, &headers, b"").status,
        403
    );
}

#[test]
fn only_loopback_is_listened_on() {
    let server = shell();
    // All of 127.0.0.0/8 is this machine, and only one address of it is ours.
    for address in ["127.0.0.2", "::1"] {
        let address: IpAddr = address.parse().unwrap();
        assert!(
            TcpStream::connect((address, server.port)).is_err(),
            "{address}"
        );
    }
}

#[test]
fn no_path_reaches_a_file() {
    let (server, _folder) = served();
    for path in [
        "../../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "%2e%2e/%2e%2e/etc/passwd",
        "....//etc/passwd",
        "/etc/passwd",
        "//etc/passwd",
        "app.js/../../../Cargo.toml",
        "./app.js",
        "app.js%00.html",
        "index.html",
        "api/0/../../app.js",
        "api/../app.js",
        "api/0/info/",
        "web/dist/app.js",
        "..\\..\\etc\\passwd",
    ] {
        let reply = server.get(path);
        assert_eq!(reply.status, 404, "{path}: {}", reply.text());
        assert!(!reply.text().contains("root:"));
    }
    for path in ["api/%2e%2e/info", "api/0/..%2f..%2fmetadata.json"] {
        let reply = server.get(path);
        assert_eq!(reply.status, 404, "{path}");
        assert!(reply.error().contains(" is not a run") || reply.error().contains("a run has no"));
    }
}

#[test]
fn only_get_and_one_post_are_answered() {
    let server = shell();
    let target = format!("/{}/api/runs", server.token);
    for method in [
        "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "BREW",
    ] {
        let status = server.ask(method, &target, &[], b"").status;
        assert_eq!(status, 405, "{method}");
    }
    let header = [("x-tensorscope", "1")];
    assert_eq!(server.ask("POST", &target, &header, b"x").status, 405);
    assert_eq!(server.get("api/0/sql").status, 405);
}

#[test]
fn no_other_site_can_send_a_query() {
    let server = shell();
    // What a form or a simple request of another site can set.
    for headers in [
        &[][..],
        &[("Content-Type", "text/plain")],
        &[("Content-Type", "application/x-www-form-urlencoded")],
        &[("x-tensorscope", "0")],
        &[("x-tensorscope", "")],
    ] {
        let reply = server.post_sql(headers, b"SELECT 1");
        assert_eq!(reply.status, 403, "{headers:?}");
        assert!(reply.error().contains("x-tensorscope"));
    }
    // The permission that a script of another site would ask for is not given.
    let target = format!("/{}/api/0/sql", server.token);
    let asking = [
        ("Origin", "http://evil.example"),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "x-tensorscope"),
    ];
    let reply = server.ask("OPTIONS", &target, &asking, b"");
    assert_eq!(reply.status, 405);
    assert!(
        !reply
            .headers
            .keys()
            .any(|name| name.starts_with("access-control"))
    );
}

#[test]
fn a_query_longer_than_the_limit_is_refused() {
    let (server, _folder) = served();
    let header = [("x-tensorscope", "1")];
    let mut query = b"SELECT '".to_vec();
    query.resize(server::MAX_SQL_BYTES, b'x');
    assert_eq!(server.post_sql(&header, &query).status, 200);
    query.push(b'x');
    let reply = server.post_sql(&header, &query);
    assert_eq!(reply.status, 413);
    assert!(reply.error().contains("65536 bytes"));
    assert_eq!(server.post_sql(&header, b"\xff").status, 400);
}

#[test]
fn every_response_forbids_the_browser_what_the_page_does_not_need() {
    let (server, _folder) = served();
    let token = &server.token;
    let replies = [
        server.get(""),
        server.get("app.js"),
        server.get("app.css"),
        server.get("api/runs"),
        server.get("api/0/map?cells=4"),
        server.get("api/0/map?cells=zero"),
        server.get("api/9/info"),
        server.get("nothing"),
        server.ask("GET", "/", &[], b""),
        server.ask("GET", &format!("/{token}"), &[], b""),
        server.ask("PUT", &format!("/{token}/"), &[], b""),
        server.ask_exactly("GET", "/", &[("Host", "evil.example")], b""),
        server.post_sql(&[], b"SELECT 1"),
        server.post_sql(&[("x-tensorscope", "1")], b"SELECT 1"),
    ];
    for reply in replies {
        let header = |name: &str| reply.headers[name].as_str();
        assert_eq!(
            header("content-security-policy"),
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; \
             connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        );
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert_eq!(header("referrer-policy"), "no-referrer");
        assert_eq!(header("cache-control"), "no-store");
        assert_eq!(header("cross-origin-resource-policy"), "same-origin");
    }
}

#[test]
fn names_of_a_hostile_model_are_only_ever_json() {
    let (server, _folder) = served();
    let mut seen = 0;
    for path in [
        "api/runs",
        "api/0/info",
        "api/0/tokens",
        "api/0/summary",
        "api/0/locate?offset=5000",
        "api/0/eval?eval=0",
        "api/0/flame",
        "api/0/findings",
        "api/0/prefers",
        "api/0/heatmap?rows=tensor&columns=4",
        "api/0/nodes?w=4",
    ] {
        let reply = server.get(path);
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        let kind = reply.headers["content-type"].as_str();
        assert!(
            [
                "application/json; charset=utf-8",
                "application/octet-stream"
            ]
            .contains(&kind),
            "{path}: {kind}"
        );
        assert_eq!(reply.headers["x-content-type-options"], "nosniff");
        seen += usize::from(reply.text().contains(HOSTILE));
    }
    assert!(seen >= 9, "only {seen} answers hold the name");
    let page = server.get("");
    assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
    assert!(!page.text().contains(HOSTILE));
}

#[test]
fn what_was_asked_comes_back_as_json_only() {
    let (server, _folder) = served();
    let escaped = "%3Cscript%3Ealert(1)%3C%2Fscript%3E";
    for path in [
        format!("api/{escaped}/info"),
        format!("api/0/{escaped}"),
        format!("api/0/info?{escaped}=1"),
        format!("api/0/info?since={escaped}"),
        format!("api/0/summary?phase={escaped}"),
        format!("api/0/map?cells=4&metric={escaped}"),
    ] {
        let reply = server.get(&path);
        assert!([400, 404].contains(&reply.status), "{path}");
        assert!(reply.error().contains("alert(1)"), "{path}");
    }
}

#[test]
fn a_server_that_is_told_to_stop_frees_its_port() {
    let server = shell();
    let port = server.port;
    // An idle connection does not hold it up.
    let _idle = TcpStream::connect(("127.0.0.1", port)).unwrap();
    assert!(server.stop().is_ok());
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}
