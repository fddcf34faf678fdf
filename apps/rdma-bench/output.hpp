// output.hpp — the output of a measurement: a table, a progress line, and files.
//
// Units are perftest's: MB/s of 2^20 bytes, Gbit/s of 10^9, Mops/s of 10^6. Latencies are in
// microseconds; those of a ping-pong are half of the round trip.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <iosfwd>
#include <string>
#include <vector>

#include "rdma-bench/client.hpp"
#include "rdma-bench/machine.hpp"

namespace rdma_bench {

/// All results of one invocation.
struct record {
    plan wanted;
    std::string server;
    std::vector<result> rounds;
    opening opened;
    /// As result::is_one_process.
    bool is_one_process = false;
    /// The two sides; the server's is empty if it did not send it.
    side_facts client_side;
    side_facts server_side;
};

/// One line that describes the measurement.
std::string describe(plan const& p);
/// A remark if a program has more threads that poll busily than processors: they take turns.
///
/// @param is_one_process  Both sides' threads share the processors.
std::string overload_note(plan const& p, unsigned processors, bool is_one_process);
/// One line: the kernel, the processors, the device with its address, and the path MTU.
std::string describe(side_facts const& f);
/// The table's header and one row.
std::string table_head(plan const& p);
std::string table_row(plan const& p, result const& r);
/// The cost of opening connections, as text.
std::string describe(opening const& o);

/// "65536", "64K", "8M".
std::string size_text(std::uint64_t bytes);

nlohmann::json to_json_record(record const& r);
/// Throws std::runtime_error if the file cannot be written.
void write_file(std::string const& path, std::string const& text);
/// The latencies of all rounds, one percentile distribution after another.
std::string histogram_text(record const& r);

/// Prints results as they arrive, and a progress line on standard error if that is a terminal.
class console final : public observer {
public:
    explicit console(record& keeps);
    void on_connected(side_facts const& client, side_facts const& server) override;
    void on_progress(
        std::uint64_t size_bytes, std::uint64_t done, std::uint64_t all, double seconds
    ) override;
    void on_result(result const& r) override;

private:
    void clear_line();

    record& record_;
    bool const is_terminal_;
    bool has_line_ = false;
};

}  // namespace rdma_bench
