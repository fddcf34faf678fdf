// reservation_keeper.hpp — the reservations of a namespace, kept in a file. Any thread.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "descriptor.hpp"
#include "identity.hpp"
#include "reservations.hpp"

namespace rcverbs::nvme::detail {

class reservation_keeper {
public:
    /// The one of a file. Two namespaces that name one file, such as before and after a reload, share it.
    ///
    /// @param disk  The UUID of the bytes: those of another disk are refused.
    /// @throws boost::system::system_error: errno of the file; EBUSY if another process uses it; EINVAL if it holds
    ///         something else.
    static std::shared_ptr<reservation_keeper> open(
        std::filesystem::path const& file, uuid_bytes const& disk
    );
    reservation_keeper(reservation_keeper const&) = delete;
    reservation_keeper& operator=(reservation_keeper const&) = delete;

    /// reservations::execute(). What changes is in the file before this returns; a change that cannot be written is not
    /// made, and the status is an internal error.
    reservations::outcome execute(
        command const& c, host_id const& host, std::span<std::byte const> data
    );
    std::vector<std::byte> report() const;
    /// Whether the state is kept over a restart. False if that cannot be written.
    bool keep(bool is_it);
    bool is_kept() const {
        std::lock_guard const lock{mutex_};
        return state_.is_kept();
    }
    bool conflicts(host_id const& host, access_kind access) const {
        // A command that began before the reservation was answered may go on; one behind the answer sees it.
        if (!is_reserved_.load(std::memory_order_acquire)) return false;
        std::lock_guard const lock{mutex_};
        return state_.conflicts(host, access);
    }

private:
    reservation_keeper(std::filesystem::path file, uuid_bytes const& disk);

    void read();
    bool replace(reservations next);
    bool write(reservations const& what) const noexcept;

    std::filesystem::path const file_;
    uuid_bytes const disk_;
    descriptor const lock_;
    mutable std::mutex mutex_;
    reservations state_;
    std::atomic<bool> is_reserved_{false};
};

}  // namespace rcverbs::nvme::detail
