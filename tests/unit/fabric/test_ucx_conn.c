/* Connections of the transport `ucx` against peers that do not keep to the protocol: other
 * versions, stolen labels, fragments out of turn, garbage on the port; and against a lack of
 * memory. */
#include "../unit.h"
#include "base/alloc.h"
#include "fabric/ucx_impl.h"
#include "ucx_peer.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

/* ---- sending what ucx_send would not ---- */

static void post(struct transport_conn *conn, enum ucx_message id, const void *header,
                 size_t n_header, const void *payload, size_t n_payload)
{
    struct ucx_send *send = mem_zero(sizeof *send + n_payload);

    assert_non_null(send);
    send->conn = conn;
    memcpy(&send->header, header, n_header);
    if (n_payload > 0)
        memcpy(send->payload, payload, n_payload);
    ucx_conn_post(send, id, n_header, send->payload, n_payload);
}

static void post_control(struct transport_conn *conn, uint32_t sequence, uint32_t n_bytes,
                         uint32_t at, size_t n_fragment)
{
    static unsigned char payload[2 * UCX_FRAGMENT_BYTES];
    const struct ucx_control control = {
        .label = conn->peer, .sequence = sequence, .n_bytes = n_bytes, .at = at};

    memset(payload, 'p', sizeof payload);
    post(conn, UCX_CONTROL, &control, sizeof control, payload, n_fragment);
}

static void settle(struct both *both)
{
    for (int i = 0; i < 30; i++)
        both_turn(both);
}

/* ---- fragments ---- */

static void fragments_that_overtake_wait_for_their_turn(void **state)
{
    struct both both;

    (void)state;
    both_open(&both);
    struct transport_conn *conn = both.out->conn;
    uint32_t next = conn->sequence_out;
    post_control(conn, next + 3, 1, 0, 1);
    post_control(conn, next + 1, 200, 100, 100); /* the second half of a message */
    settle(&both);
    assert_int_equal(both.in->n_pings, 0);
    post_control(conn, next, 200, 0, 100);
    BOTH_WAIT(&both, both.in->n_pings == 1);
    post_control(conn, next + 2, 1, 0, 1);
    BOTH_WAIT(&both, both.in->n_pings == 3);
    assert_int_equal(both.far.transport->conns[both.in->conn->label.slot]->n_early, 0);
    conn->sequence_out = next + 4;
    assert_int_equal(transport_ucx.send(conn, "usual", 5), FERRY_OK);
    BOTH_WAIT(&both, both.in->n_pings == 4);
    both_close(&both);
}

struct nonsense {
    const char *what;
    uint32_t ahead, n_bytes, at;
    size_t n_fragment;
};

static void fragments_that_make_no_sense_are_the_end(void **state)
{
    static const struct nonsense CASES[] = {
        {"too long", 0, TRANSPORT_CONTROL_MAX + 1, 0, 1},
        {"longest", 0, UINT32_MAX, 0, 1},
        {"beyond its message", 0, 10, 0, 11},
        {"not at the beginning", 0, 100, 50, 50},
        {"an empty fragment", 0, 100, 0, 0},
        {"a fragment that is too long", 0, 5000, 0, UCX_FRAGMENT_BYTES + 1},
        {"far ahead", UCX_EARLY_MAX + 1, 1, 0, 1},
        {"a sequence again", UINT32_MAX, 1, 0, 1},
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        const struct nonsense *it = &CASES[i];
        struct both both;
        both_open(&both);
        post_control(both.out->conn, both.out->conn->sequence_out + it->ahead, it->n_bytes, it->at,
                     it->n_fragment);
        BOTH_WAIT(&both, both.in->lost);
        assert_non_null(strstr(both.in->reason, "control message"));
        assert_int_equal(both.in->n_pings, 0);
        both_close(&both);
    }
}

/* Early ones are bounded; they are freed with the connection. */
static void a_flood_of_early_fragments_is_the_end(void **state)
{
    struct both both;

    (void)state;
    both_open(&both);
    struct transport_conn *conn = both.out->conn;
    for (uint32_t i = 0; i <= UCX_EARLY_MAX; i++)
        post_control(conn, conn->sequence_out + 1 + i % 5, 1, 0, 1);
    BOTH_WAIT(&both, both.in->lost);
    both_close(&both);
}

/* ---- labels ---- */

static void messages_with_a_wrong_label_are_nobodys(void **state)
{
    struct both both;

    (void)state;
    both_open(&both);
    struct transport_conn *conn = both.out->conn;
    struct ucx_control control = {.label = conn->peer, .n_bytes = 1};
    for (int i = 0; i < 3; i++) {
        control.label = conn->peer;
        if (i == 0)
            control.label.token ^= 1;
        else
            control.label.slot = i == 1 ? UINT32_MAX : conn->peer.slot + 1;
        control.sequence = conn->sequence_out;
        post(conn, UCX_CONTROL, &control, sizeof control, "x", 1);
    }
    post(conn, UCX_CONTROL, &control, sizeof control - 1, "x", 1); /* cut header */
    settle(&both);
    assert_int_equal(both.in->n_pings, 0);
    assert_false(both.in->lost);
    assert_int_equal(transport_ucx.send(conn, "usual", 5), FERRY_OK);
    BOTH_WAIT(&both, both.in->n_pings == 1);
    both_close(&both);
}

/* ---- hello ---- */

static void two_hellos_are_the_end(void **state)
{
    struct both both;

    (void)state;
    both_open(&both);
    struct transport_conn *conn = both.out->conn;
    const struct ucx_hello hello = {
        .magic = 0x78726566, .version = 1, .label = conn->label, .host = 1};
    post(conn, UCX_HELLO, &hello, sizeof hello, NULL, 0);
    BOTH_WAIT(&both, both.in->lost);
    assert_non_null(strstr(both.in->reason, "hello"));
    both_close(&both);
}

/* A plain UCX program that connects and sends one active message. */
struct stranger {
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h ep;
};

static void ignore_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    (void)arg;
    (void)ep;
    (void)status;
}

static ucs_status_t ignore_message(void *arg, const void *header, size_t n_header, void *data,
                                   size_t n_bytes, const ucp_am_recv_param_t *param)
{
    (void)arg;
    (void)header;
    (void)n_header;
    (void)data;
    (void)n_bytes;
    (void)param;
    return UCS_OK;
}

static void stranger_open(struct stranger *stranger, const char *address)
{
    const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                                 .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP};
    const ucp_worker_params_t worker = {.field_mask = 0};
    struct ucx_address to;
    ucp_config_t *config;

    assert_int_equal(ucx_address_parse(&to, address, AF_INET, NULL), FERRY_OK);
    assert_int_equal(ucp_config_read(NULL, NULL, &config), UCS_OK);
    assert_int_equal(ucp_config_modify(config, "TLS", "tcp,self"), UCS_OK);
    assert_int_equal(ucp_init(&params, config, &stranger->context), UCS_OK);
    ucp_config_release(config);
    assert_int_equal(ucp_worker_create(stranger->context, &worker, &stranger->worker), UCS_OK);
    const ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB,
        .id = UCX_HELLO,
        .cb = ignore_message,
    };
    assert_int_equal(ucp_worker_set_am_recv_handler(stranger->worker, &handler), UCS_OK);
    const ucp_ep_params_t ep = {
        .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr = {.addr = (struct sockaddr *)&to.storage, .addrlen = to.n_bytes},
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = ignore_error},
    };
    assert_int_equal(ucp_ep_create(stranger->worker, &ep, &stranger->ep), UCS_OK);
}

static void stranger_say(struct stranger *stranger, unsigned id, const void *header,
                         size_t n_header)
{
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER};
    ucs_status_ptr_t request = ucp_am_send_nbx(stranger->ep, id, header, n_header, NULL, 0, &param);

    if (UCS_PTR_IS_PTR(request))
        ucp_request_free(request);
}

static void stranger_close(struct stranger *stranger)
{
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_EP_CLOSE_FLAG_FORCE};

    (void)ucp_ep_close_nbx(stranger->ep, &param);
    ucp_worker_destroy(stranger->worker);
    ucp_cleanup(stranger->context);
}

static void turn(struct side *side, struct stranger *stranger)
{
    for (int i = 0; i < 100; i++) {
        (void)ucp_worker_progress(stranger->worker);
        transport_ucx.poll(side->transport, 300000);
    }
}

static size_t count_conns(const struct side *side)
{
    size_t n = 0;

    for (size_t i = 0; i < UCX_CONNS; i++)
        n += side->transport->conns[i] != NULL;
    return n;
}

static void strangers_with_another_hello_are_never_announced(void **state)
{
    struct ucx_hello hello = {.magic = 0x78726566, .version = 1};
    struct side side;

    (void)state;
    side_open(&side);
    for (int i = 0; i < 5; i++) {
        static const struct ucx_control control = {.n_bytes = 1};
        struct stranger stranger;
        hello.version = i == 0 ? 2 : 1;
        hello.magic = i == 1 ? 0x12345678 : 0x78726566;
        stranger_open(&stranger, side.address);
        if (i < 3)
            stranger_say(&stranger, UCX_HELLO, &hello, i == 2 ? 8 : sizeof hello);
        else
            stranger_say(&stranger, i == 3 ? UCX_CONTROL : 500, &control, sizeof control);
        turn(&side, &stranger);
        assert_int_equal(count_conns(&side), i < 3 ? 0 : 1); /* the last may still say hello */
        stranger_close(&stranger);
        SIDE_WAIT(&side, 3000, count_conns(&side) == 0);
    }
    assert_null(side.links[0].conn);
    side_close(&side);
}

static void strangers_that_say_nothing_are_dropped_in_time(void **state)
{
    struct stranger stranger;
    struct side side;

    (void)state;
    side_open(&side);
    stranger_open(&stranger, side.address);
    turn(&side, &stranger);
    assert_int_equal(count_conns(&side), 1);
    assert_true(ucx_conn_strangers(side.transport));
    for (size_t i = 0; i < UCX_CONNS; i++) {
        if (side.transport->conns[i] != NULL) /* as if it had connected long ago */
            side.transport->conns[i]->since_ns -= 11000000000u;
    }
    turn(&side, &stranger);
    assert_int_equal(count_conns(&side), 0);
    assert_null(side.links[0].conn);
    stranger_close(&stranger);
    side_close(&side);
}

/* ---- the port ---- */

static int connect_plainly(const struct side *side)
{
    struct ucx_address to;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(ucx_address_parse(&to, side->address, AF_INET, NULL), FERRY_OK);
    assert_int_equal(connect(fd, (struct sockaddr *)&to.storage, to.n_bytes), 0);
    return fd;
}

/* What a port scanner or a browser does: connects, says something or nothing, leaves. */
static void visitors_of_the_port_do_no_harm(void **state)
{
    static const char *const WORDS[] = {"", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "\r\n\r\n",
                                        "SSH-2.0-x\r\n"};
    struct both both;

    (void)state;
    both_open(&both);
    size_t before = count_descriptors();
    for (size_t i = 0; i < 3 * COUNT_OF(WORDS); i++) {
        const char *word = WORDS[i % COUNT_OF(WORDS)];
        int fd = connect_plainly(&both.far);
        assert_int_equal(send(fd, word, strlen(word), MSG_NOSIGNAL), strlen(word));
        settle(&both);
        (void)close(fd);
        settle(&both);
    }
    assert_false(both.in->lost || both.out->lost);
    assert_int_equal(transport_ucx.send(both.out->conn, "usual", 5), FERRY_OK);
    BOTH_WAIT(&both, both.in->n_pings == 1);
    BOTH_WAIT(&both, count_descriptors() <= before);
    both_close(&both);
}

/* One that takes a connection and never answers: a connect waits, and can be closed. */
static void a_connect_to_a_silent_port_can_be_closed(void **state)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof any;
    char address[64];
    struct side side;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    (void)state;
    assert_int_equal(bind(fd, (struct sockaddr *)&any, sizeof any), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&any, &n), 0);
    (void)snprintf(address, sizeof address, "127.0.0.1:%u", ntohs(any.sin_port));
    side_open(&side);
    for (int i = 0; i < 20; i++) {
        side_connect(&side, address);
        for (int k = 0; k < i; k++)
            transport_ucx.poll(side.transport, 300000);
        assert_false(side.links[0].open || side.links[0].lost);
        assert_int_equal(transport_ucx.send(side.links[0].conn, "x", 1), FERRY_AGAIN);
        uint64_t begin = now_ns();
        link_close(&side.links[0], i % 2 == 0);
        assert_true(now_ns() - begin < 500000000u * patience());
    }
    side_connect(&side, address); /* and a transport may end with one */
    side_close(&side);
    (void)close(fd);
}

static void an_address_in_use_is_said(void **state)
{
    struct side side;
    struct transport *other = NULL;
    struct ferry_error err = {0};

    (void)state;
    side_open(&side);
    struct transport_options options = {.listen = side.address};
    assert_int_equal(transport_ucx.create(&other, &options, &err), FERRY_ERR_IO);
    assert_non_null(strstr(err.msg, "in use"));
    assert_non_null(strstr(err.msg, side.address));
    options.listen = "203.0.113.1:0"; /* nobody's here */
    assert_int_equal(transport_ucx.create(&other, &options, &err), FERRY_ERR_IO);
    options.listen = "nonsense";
    assert_int_equal(transport_ucx.create(&other, &options, &err), FERRY_ERR_ARG);
    options.listen = NULL;
    assert_int_equal(transport_ucx.create(&other, &options, &err), FERRY_ERR_ARG);
    assert_null(other);
    side_close(&side);
}

/* ---- memory ---- */

static void a_lack_of_memory_is_an_error(void **state)
{
    struct side side;
    struct transport *other = NULL;
    struct transport_conn *conn = NULL;
    const struct transport_options options = {.listen = "127.0.0.1:0"};
    struct ferry_error err = {0};
    struct both both;
    enum ferry_status st = FERRY_ERR_NOMEM;

    (void)state;
    for (uint64_t n = 1; st != FERRY_OK && n < 20; n++) {
        mem_fail_after(n);
        st = transport_ucx.create(&other, &options, &err);
        mem_fail_after(0);
        assert_true(st == FERRY_OK || st == FERRY_ERR_NOMEM);
    }
    assert_int_equal(st, FERRY_OK);
    transport_ucx.destroy(other);
    side_open(&side);
    mem_fail_after(1);
    assert_int_equal(transport_ucx.connect(side.transport, "127.0.0.1:1", &conn, &err),
                     FERRY_ERR_NOMEM);
    mem_fail_after(0);
    side_close(&side);

    static const unsigned char data[TRANSPORT_CONTROL_MAX] = {'d'};
    both_open(&both);
    mem_fail_after(1); /* nothing was sent: the connection is as it was */
    assert_int_equal(transport_ucx.send(both.out->conn, data, sizeof data), FERRY_ERR_NOMEM);
    mem_fail_after(0);
    assert_int_equal(transport_ucx.send(both.out->conn, data, 10), FERRY_OK);
    BOTH_WAIT(&both, both.in->n_pings == 1);
    mem_fail_after(3); /* half a message was sent: it cannot go on */
    assert_int_equal(transport_ucx.send(both.out->conn, data, sizeof data), FERRY_ERR_PEER);
    mem_fail_after(0);
    BOTH_WAIT(&both, both.out->lost);
    assert_int_equal(both.in->n_pings, 1);
    both_close(&both);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fragments_that_overtake_wait_for_their_turn),
        cmocka_unit_test(fragments_that_make_no_sense_are_the_end),
        cmocka_unit_test(a_flood_of_early_fragments_is_the_end),
        cmocka_unit_test(messages_with_a_wrong_label_are_nobodys),
        cmocka_unit_test(two_hellos_are_the_end),
        cmocka_unit_test(strangers_with_another_hello_are_never_announced),
        cmocka_unit_test(strangers_that_say_nothing_are_dropped_in_time),
        cmocka_unit_test(visitors_of_the_port_do_no_harm),
        cmocka_unit_test(a_connect_to_a_silent_port_can_be_closed),
        cmocka_unit_test(an_address_in_use_is_said),
        cmocka_unit_test(a_lack_of_memory_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
