/* The same over TLS: answers, streams in time, a client that leaves, and noise instead of a
 * handshake. */
#include "web.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define GET(path) "GET " path " HTTP/1.1\r\nHost: localhost\r\n"

static char cert[4096], key[4096];

static void text_of(BIO *bio, char *to, size_t size)
{
    int n = BIO_read(bio, to, (int)size - 1);

    assert_true(n > 0);
    to[n] = 0;
    (void)BIO_free(bio);
}

static int make_certificate(void **state)
{
    EVP_PKEY *pair = EVP_EC_gen("P-256");
    X509 *x = X509_new();
    X509_NAME *name = X509_get_subject_name(x);
    BIO *out = BIO_new(BIO_s_mem());

    (void)state;
    (void)X509_set_version(x, 2);
    (void)ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    (void)X509_gmtime_adj(X509_getm_notBefore(x), -3600);
    (void)X509_gmtime_adj(X509_getm_notAfter(x), 3600);
    (void)X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"localhost",
                                     -1, -1, 0);
    (void)X509_set_issuer_name(x, name);
    (void)X509_set_pubkey(x, pair);
    assert_true(X509_sign(x, pair, EVP_sha256()) > 0);
    assert_int_equal(PEM_write_bio_X509(out, x), 1);
    text_of(out, cert, sizeof cert);
    out = BIO_new(BIO_s_mem());
    assert_int_equal(PEM_write_bio_PrivateKey(out, pair, NULL, NULL, 0, NULL, NULL), 1);
    text_of(out, key, sizeof key);
    X509_free(x);
    EVP_PKEY_free(pair);
    return 0;
}

/* Sends a request over TLS and reads until `part`; false when the other side ends before. */
static bool ask(const struct web *web, const char *request, char *to, size_t size, const char *part)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    BIO *bio = BIO_new_mem_buf(cert, -1);
    X509 *x = PEM_read_bio_X509(bio, NULL, NULL, NULL);
    SSL *ssl = NULL;
    size_t n = 0;
    int fd = web_connect(web), got = 0;
    bool seen = false;

    assert_int_equal(X509_STORE_add_cert(SSL_CTX_get_cert_store(context), x), 1);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    ssl = SSL_new(context);
    (void)SSL_set_fd(ssl, fd);
    assert_int_equal(SSL_connect(ssl), 1);
    assert_true(SSL_write(ssl, request, (int)strlen(request)) > 0);
    while (!seen && n + 1 < size && (got = SSL_read(ssl, to + n, (int)(size - 1 - n))) > 0) {
        n += (size_t)got;
        to[n] = 0;
        seen = strstr(to, part) != NULL;
    }
    SSL_free(ssl);
    (void)close(fd);
    X509_free(x);
    (void)BIO_free(bio);
    SSL_CTX_free(context);
    return seen;
}

static void over_tls(void **state)
{
    static char text[1 << 16];
    struct http_options options = web_options();
    struct web web = {.quiet_ms = 600, .n_pieces = 40, .piece_bytes = 1000};

    (void)state;
    options.tls_cert = cert;
    options.tls_key = key;
    options.keepalive_ms = 100;
    web_start(&web, options);
    assert_true(ask(&web,
                    "POST /later HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello",
                    text, sizeof text, "\r\n\r\nhello"));
    assert_true(ask(&web, GET("/stream") "\r\n", text, sizeof text, "\r\n0\r\n"));
    assert_true(ask(&web, GET("/quiet") "\r\n", text, sizeof text, ": keep-alive"));
    web_wait(&web.n_gone, 1); /* it left after the first comment */
    /* Its own pages have another scheme. */
    assert_true(
        ask(&web, GET("/echo") "Origin: https://localhost\r\n\r\n", text, sizeof text, "200 OK"));
    assert_true(
        ask(&web, GET("/echo") "Origin: http://localhost\r\n\r\n", text, sizeof text, "403 "));
    /* A refusal of libmicrohttpd that would have two heads: nothing is better. */
    text[0] = 0;
    assert_false(ask(&web,
                     "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\nhello",
                     text, sizeof text, "HTTP/1.1"));
    for (int i = 0; i < 20; i++) { /* who does not speak it at all */
        int fd = web_connect(&web);
        web_say(fd, i % 2 == 0 ? GET("/echo") "\r\n" : "\x16\x03\x01\x02garbage");
        (void)close(fd);
    }
    assert_true(ask(&web, GET("/echo") "\r\n", text, sizeof text, "200 OK"));
    assert_int_equal(web.n_handled, 5);
    web_wait(&web.n_closed, 3);
    web_stop(&web);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(over_tls)};

    (void)signal(SIGPIPE, SIG_IGN); /* OpenSSL writes without MSG_NOSIGNAL */
    return cmocka_run_group_tests(tests, make_certificate, NULL);
}
