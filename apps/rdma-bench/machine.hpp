// machine.hpp — figures and limits of this process and this machine. Linux.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include <rcverbs/connection.hpp>

namespace rdma_bench {

/// The machine of one side, for those who read the results later.
struct side_facts {
    std::string kernel;
    unsigned processors = 0;
    std::string device;
    std::string address;
    /// Bytes of a packet's data.
    unsigned path_mtu = 0;
};

/// This machine, and the device of an open connection.
side_facts facts_of(rcverbs::connection const& c);
void to_json(nlohmann::json& out, side_facts const& f);
/// Those of the peer; members that are missing, or of another type, stay empty.
side_facts parse_facts(nlohmann::json const& in);

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
