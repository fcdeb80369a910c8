/* https and wss: nginx in front of the real program, with authorities made for this test. */
#include "component/client_fixture.h"

static pid_t nginx;
static door good, elsewhere; /* to the proxy with a certificate for 127.0.0.1, and to the one for another host */
static char good_path[96], elsewhere_path[96], ca[96], other_ca[96];

static bool run(const char *dir, const char *script) {
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        dup2(null, 1);
        dup2(null, 2);
        if (chdir(dir) < 0) _exit(127);
        execlp("sh", "sh", "-ec", script, (char *)NULL);
        _exit(127);
    }
    int status;
    return waitpid(pid, &status, 0) == pid && status == 0;
}

static const char certificates[] =
    "command -v nginx\ncommand -v openssl\n"
    "for a in ca other-ca; do openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    " -subj /CN=$a -keyout $a.key -out $a.pem; done\n"
    "issue() { openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=$1 -keyout $1.key -out "
    "$1.csr;"
    " echo subjectAltName=$2 >$1.ext;"
    " openssl x509 -req -in $1.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile $1.ext -out $1.pem; }\n"
    "issue good IP:127.0.0.1\n"
    "issue elsewhere DNS:elsewhere.example\n";

static void write_config(void) {
    FILE *f = fopen(in_dir(&srv, "nginx.conf"), "we");
    assert_non_null(f);
    fprintf(
        f,
        "daemon off; master_process off; pid %s/nginx.pid; error_log /dev/null;\nevents {}\nhttp { access_log off;\n",
        srv.dir);
    static const char *const temp[] = {"client_body", "proxy", "fastcgi", "uwsgi", "scgi"};
    for (size_t i = 0; i < 5; i++) fprintf(f, "%s_temp_path %s/tmp-%zu;\n", temp[i], srv.dir, i);
    fprintf(f, "map $http_upgrade $connection_upgrade { default upgrade; '' ''; }\n");
    static const char *const names[] = {"good", "elsewhere"};
    for (size_t i = 0; i < 2; i++)
        fprintf(f,
                "server { listen unix:%s/%s.sock ssl; ssl_certificate %s/%s.pem; ssl_certificate_key %s/%s.key;\n"
                "location / { proxy_pass http://127.0.0.1:%u; proxy_http_version 1.1; proxy_buffering off; "
                "client_max_body_size 0;\n"
                "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade; } }\n",
                srv.dir, names[i], srv.dir, names[i], srv.dir, names[i], srv.port);
    fprintf(f, "}\n");
    fclose(f);
}

static void start_nginx(void) {
    char config[128];
    snprintf(config, sizeof config, "%s", in_dir(&srv, "nginx.conf"));
    nginx = fork();
    if (nginx == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execlp("nginx", "nginx", "-c", config, (char *)NULL);
        _exit(127);
    }
    wait_until(exists(&srv, "elsewhere.sock") && exists(&srv, "nginx.pid"));
}

static int start(void **state) {
    (void)state;
    char path[4096];
    snprintf(path, sizeof path, "%s:/usr/sbin", getenv("PATH")); /* not on the path of every user */
    setenv("PATH", path, 1);
    server_start(&srv, NULL);
    if (!run(srv.dir, certificates)) return 0; /* without nginx or openssl the tests are skipped */
    write_config();
    start_nginx();
    snprintf(good_path, sizeof good_path, "%s/good.sock", srv.dir);
    snprintf(elsewhere_path, sizeof elsewhere_path, "%s/elsewhere.sock", srv.dir);
    snprintf(ca, sizeof ca, "%s/ca.pem", srv.dir);
    snprintf(other_ca, sizeof other_ca, "%s/other-ca.pem", srv.dir);
    door_open(&good, 0, DOOR_OPEN);
    door_open(&elsewhere, 0, DOOR_OPEN);
    good.path = good_path;
    elsewhere.path = elsewhere_path;
    return 0;
}

static int stop(void **state) {
    (void)state;
    if (nginx) {
        door_close(&good);
        door_close(&elsewhere);
        kill(nginx, SIGTERM);
        waitpid(nginx, NULL, 0);
    }
    server_stop(&srv);
    return 0;
}

static conflux_client *client(const char *scheme, const door *d, conflux_mode mode, const char *ca_file, int insecure) {
    char url[64];
    conflux_error err;
    snprintf(url, sizeof url, "%s://127.0.0.1:%u", scheme, d->port);
    conflux_options o = {.url = url, .mode = mode, .ca_file = ca_file, .insecure = insecure};
    conflux_client *c = conflux_client_new(&o, &err);
    if (!c) fail_msg("%s", err.message);
    return c;
}

static const conflux_mode modes[] = {CONFLUX_WEBSOCKET, CONFLUX_HTTP, CONFLUX_AUTO};

#define needs_nginx()                                                                                                  \
    do {                                                                                                               \
        (void)state;                                                                                                   \
        if (!nginx) skip();                                                                                            \
    } while (0)

/* Large both ways: more than a TLS record, a socket buffer and a window. */
static void carries_much(conflux_client *c) {
    enum { SIZE = 6 << 20 };
    conflux_error err;
    conflux_event ev;
    size_t got = 0;
    char *body = malloc(SIZE + 200), path[128];
    snprintf(path, sizeof path, "%s", in_dir(&srv, "much"));
    size_t n = (size_t)snprintf(body, 200, "{\"path\":\"%s\",\"content\":\"", path);
    memset(body + n, 'm', SIZE);
    snprintf(body + n + SIZE, 3, "\"}");
    conflux_request write = {.path = "/api/write", .body = body};
    free(body_of(c, &write, 200));
    assert_int_equal(file_size(&srv, "much"), SIZE);
    snprintf(body, 200, "{\"command\":\"cat %s\"}", path);
    conflux_request rq = {.path = "/api/execute/stream", .body = body};
    conflux_stream *s = conflux_fetch_stream(c, &rq, &err);
    int rc;
    while ((rc = conflux_stream_next(s, &ev, &err)) == 1) {
        const char *data = strstr(ev.data, "\"data\":\"");
        if (data) got += strspn(data + strlen("\"data\":\""), "m");
    }
    assert_int_equal(rc, 0);
    assert_int_equal(got, SIZE);
    conflux_stream_free(s);
    free(body);
}

static void t_trusted(void **state) {
    needs_nginx();
    for (size_t i = 0; i < 3; i++) {
        conflux_error err;
        conflux_client *c = client(i ? "https" : "wss", &good, modes[i], ca, 0);
        assert_int_equal(conflux_connect(c, &err), 0);
        assert_int_equal(conflux_get_mode(c), modes[i] == CONFLUX_HTTP ? CONFLUX_HTTP : CONFLUX_WEBSOCKET);
        expect_output(c, "echo secret", "secret\\n");
        carries_much(c);
        conflux_client_free(c);
    }
}

static void refuses(const door *d, const char *ca_file) {
    for (size_t i = 0; i < 3; i++) {
        conflux_error err;
        conflux_response r;
        conflux_request rq = {.path = "/api/ping"};
        conflux_client *c = client("https", d, modes[i], ca_file, 0);
        assert_int_equal(conflux_connect(c, &err), -1);
        assert_int_equal(err.kind, CONFLUX_E_TLS);
        assert_int_equal(conflux_fetch(c, &rq, &r, &err), -1);
        assert_int_equal(err.kind, CONFLUX_E_TLS);
        conflux_client_free(c);
        c = client("wss", d, modes[i], ca_file, 1); /* and --insecure takes it */
        expect_output(c, "echo anyway", "anyway\\n");
        conflux_client_free(c);
    }
}

static void t_system_authorities_do_not_know_it(void **state) {
    needs_nginx();
    refuses(&good, NULL);
}

static void t_other_authority(void **state) {
    needs_nginx();
    refuses(&good, other_ca);
}

static void t_other_host(void **state) {
    needs_nginx();
    refuses(&elsewhere, ca);
}

/* A plain server where TLS is spoken, and the other way round. */
static void t_wrong_scheme(void **state) {
    needs_nginx();
    conflux_error err;
    char url[64];
    snprintf(url, sizeof url, "https://127.0.0.1:%u", srv.port);
    conflux_options o = {.url = url, .ca_file = ca};
    conflux_client *c = conflux_client_new(&o, &err);
    assert_int_equal(conflux_connect(c, &err), -1);
    assert_int_equal(err.kind, CONFLUX_E_TLS);
    conflux_client_free(c);
    c = client("ws", &good, CONFLUX_WEBSOCKET, NULL, 0);
    assert_int_equal(conflux_connect(c, &err), -1);
    assert_int_equal(err.kind, CONFLUX_E_UPGRADE);
    conflux_client_free(c);
}

static void t_no_such_file(void **state) {
    (void)state;
    conflux_error err;
    conflux_options o = {.url = "https://127.0.0.1:1", .ca_file = "/no/such/file"};
    assert_null(conflux_client_new(&o, &err));
    assert_int_equal(err.kind, CONFLUX_E_TLS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_trusted),         cmocka_unit_test(t_system_authorities_do_not_know_it),
        cmocka_unit_test(t_other_authority), cmocka_unit_test(t_other_host),
        cmocka_unit_test(t_wrong_scheme),    cmocka_unit_test(t_no_such_file),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
