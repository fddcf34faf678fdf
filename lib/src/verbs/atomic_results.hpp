// atomic_results.hpp — memory for the results of atomics, registered for many queue pairs at a time.
//
// A registration is two system calls, and pins a page at least; a queue pair needs 8 bytes for each of
// its sends. So the queue pairs of a protection domain share regions. No right of a peer's is in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <rcverbs/protection_domain.hpp>
#include <rcverbs/registered_buffer.hpp>

namespace rcverbs::verbs {

/// Those of a protection domain. Any thread.
class atomic_results {
public:
    /// Memory of one queue pair; keeps its region registered. Any thread may destroy it.
    class place;

    /// Memory of so many bytes. Registers more if none is free: at first a page, each time twice as
    /// much as before, up to region_bytes_max.
    ///
    /// @param of  The domain that has this object.
    /// @param ec  The errors of memory_region; then null.
    std::shared_ptr<place> take(
        protection_domain const& of, std::size_t size_bytes, error_code& ec
    );

    static constexpr std::size_t region_bytes_max = 65536;

private:
    class region;

    std::shared_ptr<place> take_from_present(std::size_t place_bytes);

    std::mutex mutex_;
    // Guarded by mutex_. A region ends with its last place: it keeps the domain.
    std::vector<std::weak_ptr<region>> regions_;
    std::size_t next_bytes_ = 4096;
};

class atomic_results::place {
public:
    place(std::shared_ptr<region> of, std::uint32_t index) noexcept
        : region_{std::move(of)},
          index_{index} {}
    place(place const&) = delete;
    place& operator=(place const&) = delete;
    ~place();

    mutable_slice slice() const;

private:
    std::shared_ptr<region> const region_;
    std::uint32_t const index_;
};

}  // namespace rcverbs::verbs
