/* Link classes: what kind of road joins two ranks, nearest first.
 *
 * Why here: law 4 (shortest road) counts every byte under a class, and plan and replica choice
 * prefer the earlier one. It must not know transports or how a class was found out. */
#ifndef TOPOLOGY_LINK_H
#define TOPOLOGY_LINK_H

/* X(name, label) in order of preference. */
#define LINK_CLASS_LIST(X) \
    X(LINK_LOCAL, "local") \
    X(LINK_SHM, "shm")     \
    X(LINK_NUMA, "numa")   \
    X(LINK_PCIE, "pcie")   \
    X(LINK_RDMA, "rdma")   \
    X(LINK_TCP, "tcp")     \
    X(LINK_UNKNOWN, "none")

enum link_class {
#define LINK_CLASS_ENUM(name, label) name,
    LINK_CLASS_LIST(LINK_CLASS_ENUM)
#undef LINK_CLASS_ENUM
        LINK_N_CLASSES
};

/* Label for metrics and messages; never NULL. Any thread. */
const char *link_class_name(enum link_class link);

#endif
