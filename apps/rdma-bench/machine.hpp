// machine.hpp — figures and limits of this process and this machine. Linux.
#pragma once

#include <cstdint>
#include <string>

namespace rdma_bench {

/// Processor time of the process, user and system.
double cpu_seconds() noexcept;
/// Resident memory of the process, and available memory of the machine. 0 if unknown.
std::uint64_t resident_bytes();
std::uint64_t available_bytes();
/// The kernel's name and release, and the number of usable processors.
std::string kernel();
unsigned processors() noexcept;
/// Raises the soft limit on open files to the hard limit: each connection has a descriptor.
void raise_file_limit() noexcept;
/// Pins the calling thread to one processor. Throws boost::system::system_error.
void pin_this_thread(int processor);

}  // namespace rdma_bench
