/* One device for all tests of a file: the setup and teardown of its group. */
#ifndef TESTS_UNIT_EXCHANGE_ONE_DEVICE_H
#define TESTS_UNIT_EXCHANGE_ONE_DEVICE_H

#include "tests/unit/unit.h"

#include "device/device.h"

static struct device *device;

static int make_device(void **state)
{
    struct device_options options = {.n_threads = 3, .level = CPU_LEVEL_REF};

    (void)state;
    return device_create_cpu(&device, &options, NULL) == FERRY_OK ? 0 : -1;
}

static int free_device(void **state)
{
    (void)state;
    device_destroy(device);
    return 0;
}

#endif
