#include "host_counters.hpp"

#include <utility>

namespace rcverbs::nvme::detail {

namespace {

std::uint64_t nanoseconds(host_counters::clock::duration d) noexcept {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(d).count(
    ));
}

// Nothing depends on the order in which others see the counters.
void add_to(std::atomic<std::uint64_t>& counter, std::uint64_t n) noexcept {
    counter.fetch_add(n, std::memory_order_relaxed);
}

}  // namespace

void host_counters::note(command const& c, status how, clock::duration after) noexcept {
    switch (how) {
    case status::success: break;
    case status::lba_range:
    case status::capacity_exceeded: return add_to(out_of_range_, 1);
    case status::write_protected: return add_to(write_protected_, 1);
    case status::write_fault:
    case status::read_error: return add_to(media_, 1);
    case status::compare_failed: return add_to(differing_, 1);
    case status::internal_error:
    case status::path_error:
    case status::ana_persistent_loss:
    case status::ana_inaccessible:
    case status::ana_transition: return add_to(transient_, 1);
    default: return add_to(invalid_, 1);
    }
    if (c.code == opcode::read) {
        add_to(reads_, 1);
        add_to(read_bytes_, c.data.size_bytes);
        add_to(read_time_, nanoseconds(after));
    } else if (c.code == opcode::write) {
        add_to(writes_, 1);
        add_to(written_bytes_, c.data.size_bytes);
        add_to(write_time_, nanoseconds(after));
    } else {
        add_to(other_commands_, 1);
        add_to(other_time_, nanoseconds(after));
    }
}

void host_counters::note_store(clock::duration after) noexcept {
    add_to(store_requests_, 1);
    add_to(store_time_, nanoseconds(after));
}

void host_counters::add(host_statistics const& other) noexcept {
    add_to(reads_, other.reads);
    add_to(read_bytes_, other.read_bytes);
    add_to(read_time_, nanoseconds(other.read_time));
    add_to(writes_, other.writes);
    add_to(written_bytes_, other.written_bytes);
    add_to(write_time_, nanoseconds(other.write_time));
    add_to(other_commands_, other.other_commands);
    add_to(other_time_, nanoseconds(other.other_time));
    add_to(store_requests_, other.store_requests);
    add_to(store_time_, nanoseconds(other.store_time));
    add_to(invalid_, other.invalid_commands);
    add_to(out_of_range_, other.out_of_range);
    add_to(write_protected_, other.write_protected);
    add_to(media_, other.media_errors);
    add_to(differing_, other.compares_that_differ);
    add_to(transient_, other.transient_errors);
}

void host_counters::write(host_statistics& to) const noexcept {
    auto const time = [](number const& n) {
        return std::chrono::nanoseconds{static_cast<std::chrono::nanoseconds::rep>(n.load())};
    };
    to.reads = reads_;
    to.read_bytes = read_bytes_;
    to.read_time = time(read_time_);
    to.writes = writes_;
    to.written_bytes = written_bytes_;
    to.write_time = time(write_time_);
    to.other_commands = other_commands_;
    to.other_time = time(other_time_);
    to.store_requests = store_requests_;
    to.store_time = time(store_time_);
    to.invalid_commands = invalid_;
    to.out_of_range = out_of_range_;
    to.write_protected = write_protected_;
    to.media_errors = media_;
    to.compares_that_differ = differing_;
    to.transient_errors = transient_;
    to.old_commands = old_.snapshot();
}

std::shared_ptr<host_counters> host_counter_table::find_or_add(
    std::string const& subsystem, std::uint32_t namespace_id, std::string const& host
) {
    std::lock_guard const lock{mutex_};
    key const name{subsystem, namespace_id, host};
    if (auto const found = rows_.find(name); found != rows_.end()) return found->second;
    if (host.empty() || !make_room()) return row({subsystem, namespace_id, ""});
    ++named_;
    return row(name);
}

std::shared_ptr<host_counters> host_counter_table::row(key const& name) {
    auto& found = rows_[name];
    if (found == nullptr) found = std::make_shared<host_counters>();
    return found;
}

// False if there are as many rows as there may be, and all are in use.
bool host_counter_table::make_room() {
    if (named_ < rows_max) return true;
    for (auto const& [name, counters] : rows_) {
        auto const& [subsystem, namespace_id, host] = name;
        // Without the lock, nobody gets it any more.
        if (host.empty() || counters.use_count() > 1) continue;
        // What its last holder has counted.
        std::atomic_thread_fence(std::memory_order_acquire);
        host_statistics numbers;
        counters->write(numbers);
        key const unused = name;
        row({subsystem, namespace_id, ""})->add(numbers);
        rows_.erase(unused);
        --named_;
        return true;
    }
    return false;
}

std::vector<host_statistics> host_counter_table::snapshot() const {
    std::vector<host_statistics> all;
    std::lock_guard const lock{mutex_};
    for (auto const& [name, counters] : rows_) {
        host_statistics& next = all.emplace_back();
        std::tie(next.subsystem, next.namespace_id, next.host) = name;
        counters->write(next);
    }
    return all;
}

}  // namespace rcverbs::nvme::detail
