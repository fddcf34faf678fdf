#include "remote/registrations.hpp"

#include <boost/asio/post.hpp>

#include <span>
#include <utility>

namespace rcverbs::detail {

memory_region registered(
    protection_domain const& domain,
    offered_region const& what,
    machines::piece_map::part const& at,
    error_code& ec
) {
    auto const offset = static_cast<std::size_t>(at.offset);
    std::span<std::byte> const bytes =
        what.memory[at.piece].subspan(offset, static_cast<std::size_t>(at.size));
    return memory_region{domain, bytes, what.rights, ec};
}

registrations::job::job(offer_ptr of, std::uint32_t of_piece) noexcept
    : number{of->number},
      piece{of_piece},
      what_{std::move(of)} {}

void registrations::job::run(machines::piece_map::part const& at) {
    if (is_cancelled_) return drop();
    region = registered(domain_, *what_, at, ec);
    if (ec) limit = limit_met(domain_, at.size, ec);
    if (is_cancelled_) drop();
}

void registrations::job::drop() noexcept {
    region = {};
    what_.reset();
}

registrations::job_ptr registrations::start(
    boost::asio::any_io_executor const& on,
    boost::asio::any_io_executor const& io,
    protection_domain const& domain,
    offer_ptr const& what,
    std::uint32_t piece,
    machines::piece_map::part const& at,
    std::function<void(job_ptr)> then
) {
    auto made = std::make_shared<job>(what, piece);
    made->io_ = io;
    made->domain_ = domain;
    under_way_.insert(made);
    boost::asio::post(on, [made, at, t = std::move(then)] {
        std::lock_guard const lock{made->mutex_};
        if (made->is_over_) return;
        try {
            made->run(at);
            boost::asio::post(made->io_, [made, t] { t(made); });
        } catch (...) {
            // No memory: the peer's request ends at its timeout.
            made->drop();
        }
    });
    return made;
}

void registrations::cancel(job& which) noexcept {
    which.is_cancelled_ = true;
    std::unique_lock const lock{which.mutex_, std::try_to_lock};
    if (lock.owns_lock()) which.drop();
}

void registrations::end() noexcept {
    for (job_ptr const& each : under_way_) {
        std::lock_guard const lock{each->mutex_};
        each->is_over_ = true;
        each->drop();
        each->domain_ = {};
        each->io_ = {};
    }
    under_way_.clear();
}

}  // namespace rcverbs::detail
