#!/usr/bin/env bash
# library_is_quiet.sh LIBRARY: the library neither prints, exits, sleeps, reads the environment nor handles signals.
set -uo pipefail
banned='(printf|fprintf|puts|fputs|putchar|perror|exit|_exit|abort|quick_exit|sleep|usleep|nanosleep|getenv|secure_getenv|signal|sigaction)'
if nm -uC "$1" | grep -E " U $banned(@|\$)|std::cout|std::cerr|std::clog"; then
    echo "the library calls what it must not"
    exit 1
fi
echo quiet
