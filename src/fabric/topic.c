/* Messages of the rooms above: queued by any thread, sent and delivered by the fabric's. See
 * fabric.h. */
#include "fabric/fabric_impl.h"

#include "base/alloc.h"

#include <string.h>

static void push(struct topic_queue *queue, struct topic_item *item)
{
    item->next = NULL;
    if (queue->last != NULL)
        queue->last->next = item;
    else
        queue->first = item;
    queue->last = item;
    queue->n_bytes += item->n_bytes + sizeof *item;
}

static struct topic_item *pop(struct topic_queue *queue)
{
    struct topic_item *item = queue->first;

    if (item == NULL)
        return NULL;
    queue->first = item->next;
    if (queue->first == NULL)
        queue->last = NULL;
    queue->n_bytes -= item->n_bytes + sizeof *item;
    return item;
}

static struct topic_item *make_item(enum fabric_topic topic, const void *data, size_t n_bytes)
{
    struct topic_item *item = mem_alloc(sizeof *item + n_bytes);

    if (item == NULL)
        return NULL;
    *item = (struct topic_item){.topic = topic, .n_bytes = n_bytes};
    if (n_bytes > 0)
        memcpy(item->data, data, n_bytes);
    return item;
}

enum ferry_status fabric_send(struct fabric *fabric, int seat, enum fabric_topic topic,
                              const void *data, size_t n_bytes)
{
    enum ferry_status st = FERRY_OK;
    struct topic_item *item;

    if (n_bytes > TRANSPORT_CONTROL_MAX - WIRE_TOPIC_BYTES)
        return FERRY_ERR_LIMIT;
    item = make_item(topic, data, n_bytes);
    if (item == NULL)
        return FERRY_ERR_NOMEM;
    (void)pthread_mutex_lock(&fabric->lock);
    if (seat < 0 || seat >= LIMIT_SEATS || seat == fabric_seat(fabric) ||
        (fabric->view.members & seat_bit(seat)) == 0) {
        st = FERRY_ERR_PEER;
    } else if (fabric->sending[seat].n_bytes + n_bytes > LIMIT_FABRIC_QUEUE) {
        st = FERRY_AGAIN;
    } else {
        item->seat = seat;
        push(&fabric->sending[seat], item);
        item = NULL;
    }
    (void)pthread_mutex_unlock(&fabric->lock);
    mem_free(item);
    if (st == FERRY_OK)
        fabric->ops->wake(fabric->transport);
    return st;
}

static void flush_seat(struct fabric *f, int seat)
{
    struct peer *peer = f->seats[seat];

    while (peer != NULL) {
        struct wire message = {.type = WIRE_TOPIC};
        struct topic_item *item;

        (void)pthread_mutex_lock(&f->lock);
        item = f->sending[seat].first; /* only this thread takes away */
        (void)pthread_mutex_unlock(&f->lock);
        if (item == NULL)
            return;
        message.topic.topic = item->topic;
        message.topic.data = item->data;
        message.topic.n_bytes = item->n_bytes;
        if (peers_send(f, peer, &message) == FERRY_AGAIN)
            return;
        (void)pthread_mutex_lock(&f->lock);
        item = pop(&f->sending[seat]);
        (void)pthread_mutex_unlock(&f->lock);
        mem_free(item);
    }
}

void topic_flush(struct fabric *f)
{
    for (int s = 0; s < (int)f->group.n_seats; s++)
        flush_seat(f, s);
}

static void free_queue(struct topic_queue *queue)
{
    struct topic_item *item;

    while ((item = pop(queue)) != NULL)
        mem_free(item);
}

void topic_drop(struct fabric *f, int seat)
{
    (void)pthread_mutex_lock(&f->lock);
    free_queue(&f->sending[seat]);
    (void)pthread_mutex_unlock(&f->lock);
}

void topic_free(struct fabric *f)
{
    for (int s = 0; s < LIMIT_SEATS; s++)
        free_queue(&f->sending[s]);
    free_queue(&f->waiting);
}

/* ---- coming in ---- */

/* Calls the handler; false: there is none yet, or the sender is not a member yet. */
static bool deliver(struct fabric *f, int seat, uint64_t instance, enum fabric_topic topic,
                    const void *data, size_t n_bytes)
{
    fabric_message_fn *fn;
    void *arg;

    (void)pthread_mutex_lock(&f->lock);
    fn = f->on_message[topic];
    arg = f->on_message_arg[topic];
    (void)pthread_mutex_unlock(&f->lock);
    if (fn == NULL || f->seats[seat] == NULL || f->seats[seat]->instance != instance)
        return false;
    fn(arg, seat, f->group.committed.seats[seat].incarnation, data, n_bytes);
    return true;
}

void topic_receive(struct fabric *f, struct peer *peer, const struct wire *m)
{
    struct topic_item *item;

    if (f->waiting.first == NULL &&
        deliver(f, peer->seat, peer->instance, m->topic.topic, m->topic.data, m->topic.n_bytes))
        return;
    /* A sender that fills this is not one of ours: little is said before handlers are set. */
    item = f->waiting.n_bytes > 4 * (size_t)LIMIT_FABRIC_QUEUE
               ? NULL
               : make_item(m->topic.topic, m->topic.data, m->topic.n_bytes);
    if (item == NULL) {
        peers_lost(f, peer, f->ops->now_ns(f->transport)); /* in order, or not at all */
        return;
    }
    item->seat = peer->seat;
    item->instance = peer->instance;
    push(&f->waiting, item);
}

void topic_deliver(struct fabric *f)
{
    struct topic_queue kept = {NULL, NULL, 0};
    struct topic_item *item;

    while ((item = pop(&f->waiting)) != NULL) {
        if (deliver(f, item->seat, item->instance, item->topic, item->data, item->n_bytes) ||
            peers_of(f, item->seat, item->instance) == NULL)
            mem_free(item);
        else
            push(&kept, item);
    }
    f->waiting = kept;
}
