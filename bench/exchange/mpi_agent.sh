#!/usr/bin/env bash
# What mpirun starts its daemons with (plm_rsh_agent) when the hosts are namespaces of this machine:
# mpi_agent.sh hostB COMMAND... runs the command line in host B of tests/cluster/hosts.sh.
set -euo pipefail
host=${1#host}
shift
exec "$(dirname "${BASH_SOURCE[0]}")/../../tests/cluster/hosts.sh" exec "$host" sh -c "$*"
