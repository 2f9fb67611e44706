/* "host:port" to socket addresses and back, for the transport `ucx`.
 *
 * Why here: members tell each other where they listen, so that what is printed must be what others
 * can connect to. It must not know connections. */
#include "base/error.h"
#include "fabric/ucx_impl.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

/* Splits at the last colon, takes brackets off. False: not of that form. */
static bool split(const char *text, char host[TRANSPORT_ADDRESS_MAX], const char **ret_port)
{
    size_t n = strlen(text);
    const char *colon = strrchr(text, ':');

    if (n >= TRANSPORT_ADDRESS_MAX || colon == NULL || colon == text)
        return false;
    size_t n_host = (size_t)(colon - text);
    if (text[0] == '[') {
        if (n_host < 3 || text[n_host - 1] != ']')
            return false;
        text++;
        n_host -= 2;
    } else if (memchr(text, ':', n_host) != NULL) {
        return false; /* an IPv6 address without brackets: where does the port begin? */
    }
    memcpy(host, text, n_host);
    host[n_host] = 0;
    *ret_port = colon + 1;
    return true;
}

static bool port_is_legal(const char *port)
{
    unsigned value = 0;

    if (port[0] == 0 || strlen(port) > 5)
        return false;
    for (; *port != 0; port++) {
        if (*port < '0' || *port > '9')
            return false;
        value = 10 * value + (unsigned)(*port - '0');
    }
    return value <= 65535;
}

static const struct addrinfo *choose(const struct addrinfo *found, sa_family_t family)
{
    const struct addrinfo *best = NULL;

    for (const struct addrinfo *each = found; each != NULL; each = each->ai_next) {
        if (each->ai_addrlen > sizeof(struct sockaddr_storage))
            continue;
        if (best == NULL || (best->ai_family != family && each->ai_family == family))
            best = each;
    }
    return best;
}

enum ferry_status ucx_address_parse(struct ucx_address *ret, const char *text, sa_family_t family,
                                    struct ferry_error *err)
{
    char host[TRANSPORT_ADDRESS_MAX];
    const char *port;
    struct addrinfo *found = NULL;
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};

    if (text == NULL || !split(text, host, &port))
        return FERRY_FAIL(err, FERRY_ERR_ARG,
                          "address '%.100s': wants host:port, or [address]:port for IPv6",
                          text == NULL ? "" : text);
    if (!port_is_legal(port))
        return FERRY_FAIL(err, FERRY_ERR_ARG, "address '%.100s': the port is no number of 0..65535",
                          text);
    int rc = getaddrinfo(host, port, &hints, &found);
    if (rc != 0)
        return FERRY_FAIL(err, FERRY_ERR_ARG, "address '%.100s': unknown host: %s", text,
                          gai_strerror(rc));
    const struct addrinfo *best = choose(found, family);
    if (best != NULL) {
        *ret = (struct ucx_address){.n_bytes = best->ai_addrlen};
        memcpy(&ret->storage, best->ai_addr, best->ai_addrlen);
    }
    freeaddrinfo(found);
    if (best == NULL)
        return FERRY_FAIL(err, FERRY_ERR_ARG, "address '%.100s': no address of a known kind", text);
    return FERRY_OK;
}

static bool is_wildcard(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET)
        return ((const struct sockaddr_in *)address)->sin_addr.s_addr == htonl(INADDR_ANY);
    return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

/* How well others may reach an interface's address: 0 not at all. */
static int reach(const struct ifaddrs *each, sa_family_t family)
{
    if (each->ifa_addr == NULL || (each->ifa_flags & IFF_UP) == 0 ||
        each->ifa_addr->sa_family != family)
        return 0;
    if (family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)each->ifa_addr;
        if (IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr))
            return 0;
    }
    return (each->ifa_flags & IFF_LOOPBACK) != 0 ? 1 : 2;
}

/* Puts this host's best address into a wildcard one; leaves it when there is none. */
static void fill_wildcard(struct sockaddr_storage *address)
{
    struct ifaddrs *all;
    const struct ifaddrs *best = NULL;

    if (getifaddrs(&all) != 0)
        return;
    for (const struct ifaddrs *each = all; each != NULL; each = each->ifa_next) {
        int score = reach(each, address->ss_family);
        if (score > (best == NULL ? 0 : reach(best, address->ss_family)))
            best = each;
    }
    if (best != NULL && address->ss_family == AF_INET) {
        struct sockaddr_in own;
        memcpy(&own, best->ifa_addr, sizeof own);
        ((struct sockaddr_in *)address)->sin_addr = own.sin_addr;
    } else if (best != NULL) {
        struct sockaddr_in6 own;
        memcpy(&own, best->ifa_addr, sizeof own);
        ((struct sockaddr_in6 *)address)->sin6_addr = own.sin6_addr;
    }
    freeifaddrs(all);
}

static bool is_same(const struct sockaddr *one, const struct sockaddr_storage *other)
{
    if (one == NULL || one->sa_family != other->ss_family)
        return false;
    if (one->sa_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)one)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)other)->sin_addr.s_addr;
    return one->sa_family == AF_INET6 &&
           IN6_ARE_ADDR_EQUAL(&((const struct sockaddr_in6 *)(const void *)one)->sin6_addr,
                              &((const struct sockaddr_in6 *)other)->sin6_addr);
}

void ucx_address_device(const struct sockaddr_storage *address, char ret_name[UCX_DEVICE_MAX])
{
    struct ifaddrs *all;

    ret_name[0] = 0;
    if (getifaddrs(&all) != 0)
        return;
    for (const struct ifaddrs *each = all; each != NULL && ret_name[0] == 0;
         each = each->ifa_next) {
        if (is_same(each->ifa_addr, address) && strlen(each->ifa_name) < UCX_DEVICE_MAX)
            memcpy(ret_name, each->ifa_name, strlen(each->ifa_name) + 1);
    }
    freeifaddrs(all);
}

void ucx_address_format(const struct sockaddr_storage *address,
                        char ret_text[TRANSPORT_ADDRESS_MAX])
{
    struct sockaddr_storage shown = *address;
    char host[INET6_ADDRSTRLEN] = "?";
    unsigned port = 0;

    if (address->ss_family != AF_INET && address->ss_family != AF_INET6) {
        (void)snprintf(ret_text, TRANSPORT_ADDRESS_MAX, "?");
        return;
    }
    if (is_wildcard(&shown))
        fill_wildcard(&shown);
    if (shown.ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)&shown;
        (void)inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
        port = ntohs(in->sin_port);
        (void)snprintf(ret_text, TRANSPORT_ADDRESS_MAX, "%s:%u", host, port);
    } else {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&shown;
        (void)inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof host);
        port = ntohs(in6->sin6_port);
        (void)snprintf(ret_text, TRANSPORT_ADDRESS_MAX, "[%s]:%u", host, port);
    }
}
