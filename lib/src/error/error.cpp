#include <rcverbs/error.hpp>

#include <string>

#include "error/descriptions.hpp"

namespace rcverbs {

namespace detail {

std::string described_category::message(int value) const {
    description const known = describe(value);
    return known.what != nullptr ? known.text() : unknown(value);
}

boost::system::error_condition described_category::default_error_condition(int value
) const noexcept {
    return boost::system::errc::make_error_condition(describe(value).like);
}

bool described_category::equivalent(int value, boost::system::error_condition const& c)
    const noexcept {
    if (c.category() != condition_category()) return default_error_condition(value) == c;
    return (describe(value).conditions >> static_cast<unsigned>(c.value()) & 1U) != 0;
}

}  // namespace detail

namespace {

class manager_category final : public detail::category_of<cm_errc> {
public:
    using category_of::category_of;

private:
    std::string unknown(int value) const override {
        return value >= 1000 ? "rejected with reason " + std::to_string(value - 1000)
                             : "connection manager event " + std::to_string(value);
    }
};

namespace is = boost::system::errc;

bool is_any_of(error_code const& ec, std::initializer_list<is::errc_t> all) noexcept {
    for (is::errc_t const one : all) {
        if (ec == one) return true;
    }
    return false;
}

class condition_errors final : public boost::system::error_category {
public:
    char const* name() const noexcept override { return "rcverbs.condition"; }
    std::string message(int value) const override {
        switch (static_cast<condition>(value)) {
        case condition::timed_out: return "a deadline passed";
        case condition::protocol_violation: return "the peer violated a protocol";
        case condition::ended_by_peer: return "the peer ended the connection";
        case condition::refused: return "the connection was refused";
        case condition::transient: return "the failure may pass";
        case condition::operation_only: return "only the operation failed";
        }
        return "unknown condition " + std::to_string(value);
    }
    // Described categories answer for their codes; this is for errno.
    bool equivalent(error_code const& ec, int value) const noexcept override {
        if (ec.category() != boost::system::system_category() &&
            ec.category() != boost::system::generic_category())
            return false;
        switch (static_cast<condition>(value)) {
        case condition::timed_out: return ec == is::timed_out;
        case condition::ended_by_peer: return ec == is::connection_reset;
        case condition::refused: return ec == is::connection_refused;
        case condition::transient:
            return is_any_of(
                ec,
                {is::timed_out,
                 is::network_unreachable,
                 is::host_unreachable,
                 is::network_down,
                 is::connection_refused,
                 is::connection_reset,
                 is::resource_unavailable_try_again,
                 is::not_enough_memory,
                 is::too_many_files_open,
                 is::address_not_available}
            );
        default: return false;
        }
    }
    using boost::system::error_category::equivalent;
};

}  // namespace

boost::system::error_category const& rcverbs_category() noexcept {
    static detail::category_of<errc> const category{"rcverbs"};
    return category;
}

boost::system::error_category const& work_completion_category() noexcept {
    static detail::category_of<wc_errc> const category{"rcverbs.work_completion"};
    return category;
}

boost::system::error_category const& connection_manager_category() noexcept {
    static manager_category const category{"rcverbs.connection_manager"};
    return category;
}

boost::system::error_category const& condition_category() noexcept {
    static condition_errors const category;
    return category;
}

bool is_transient(error_code const& ec) noexcept { return ec && ec == condition::transient; }

bool is_fatal(error_code const& ec) noexcept { return ec && ec != condition::operation_only; }

}  // namespace rcverbs

extern "C" void RCVERBS_ASIO_SETTINGS() noexcept {}  // its name is what it is for
