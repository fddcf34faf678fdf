// machine.hpp — what the operating system says of this program and this machine. Linux.
#pragma once

#include <cstdint>
#include <string>

namespace rdma_bench {

/// Processor time that the program has used, user and system.
double cpu_seconds() noexcept;
/// Memory that the program has in use, and that the machine could still give. 0 if it is not said.
std::uint64_t resident_bytes();
std::uint64_t available_bytes();
/// The kernel's name and release, and the processors that may be used.
std::string kernel();
unsigned processors() noexcept;
/// Lets the program have as many open files as it may: each connection has one.
void raise_file_limit() noexcept;
/// Pins the calling thread to one processor. Throws boost::system::system_error.
void pin_this_thread(int processor);

}  // namespace rdma_bench
