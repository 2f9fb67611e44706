/* Names of link classes. See link.h. */
#include "topology/link.h"

const char *link_class_name(enum link_class link)
{
    switch (link) {
#define LINK_CLASS_CASE(name, label) \
    case name:                       \
        return label;
        LINK_CLASS_LIST(LINK_CLASS_CASE)
#undef LINK_CLASS_CASE
    case LINK_N_CLASSES:
        break;
    }
    return "unknown";
}
