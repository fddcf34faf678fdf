// admission.hpp — how many connections an acceptor has alive, in all and of each address.
//
// Every connection holds its place until its queue pair is gone. Safe from any thread.
#pragma once

#include <boost/asio/ip/address.hpp>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

namespace rcverbs::detail {

class admission : public std::enable_shared_from_this<admission> {
public:
    /// Zero for none.
    struct limits {
        std::size_t in_all = 0;
        std::size_t of_each_address = 0;
    };

    /// One of the places; given back with it.
    class place {
    public:
        place(std::shared_ptr<admission> at, boost::asio::ip::address whose)
            : at_{std::move(at)}, whose_{std::move(whose)} {}
        place(place const&) = delete;
        place& operator=(place const&) = delete;
        ~place() { at_->leave(whose_); }

    private:
        std::shared_ptr<admission> const at_;
        boost::asio::ip::address const whose_;
    };

    explicit admission(limits l) noexcept : limits_{l} {}

    /// A place for one more of that address; null if there is none.
    std::shared_ptr<place> admit(boost::asio::ip::address const& whose) {
        std::lock_guard const lock{mutex_};
        auto const found = of_address_.find(whose);
        std::size_t const theirs = found != of_address_.end() ? found->second : 0;
        if (limits_.in_all != 0 && all_ >= limits_.in_all) return nullptr;
        if (limits_.of_each_address != 0 && theirs >= limits_.of_each_address) return nullptr;
        of_address_[whose] = theirs + 1;
        ++all_;
        return std::make_shared<place>(shared_from_this(), whose);
    }

    std::size_t count() const {
        std::lock_guard const lock{mutex_};
        return all_;
    }

private:
    void leave(boost::asio::ip::address const& whose) noexcept {
        std::lock_guard const lock{mutex_};
        --all_;
        auto const found = of_address_.find(whose);
        if (--found->second == 0) of_address_.erase(found);
    }

    limits const limits_;
    mutable std::mutex mutex_;
    std::size_t all_ = 0;
    std::map<boost::asio::ip::address, std::size_t> of_address_;
};

}  // namespace rcverbs::detail
