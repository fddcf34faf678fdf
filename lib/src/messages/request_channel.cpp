#include <rcverbs/request_channel.hpp>
#include <rcverbs/experimental/protocol/option_check.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

#include "messages/request_core.hpp"

namespace rcverbs::detail {

std::string problem_of(request_channel_options const& options) {
    constexpr std::chrono::milliseconds least{1};
    option_check check{"request_channel_options"};
    check.inside(problem_of(options.messages))
        .within("requests", options.requests, 1, 65535)
        .from("answer_timeout", options.answer_timeout, least);
    return check.problem();
}

// --- the duty to answer --------------------------------------------------------------------------

responder::responder() noexcept = default;
responder::responder(
    std::shared_ptr<request_core> core, std::uint16_t id, remote_region const& target
) noexcept
    : core_{std::move(core)},
      target_{target},
      id_{id},
      is_open_{true} {}
responder::responder(responder&& other) noexcept
    : core_{std::move(other.core_)},
      target_{other.target_},
      id_{other.id_},
      is_open_{std::exchange(other.is_open_, false)} {}

responder& responder::operator=(responder&& other) noexcept {
    if (this != &other) {
        drop();
        core_ = std::move(other.core_);
        target_ = other.target_;
        id_ = other.id_;
        is_open_ = std::exchange(other.is_open_, false);
    }
    return *this;
}

responder::~responder() { drop(); }

boost::asio::any_io_executor responder::executor() const { return core_->executor(); }

void responder::drop() noexcept {
    if (std::exchange(is_open_, false)) core_->drop(id_);
}

bool responder::is_cancelled() const noexcept { return is_open_ && core_->is_cancelled(id_); }

std::uint64_t responder::target_bytes() const noexcept {
    return is_open_ && !is_cancelled() ? target_.size() : 0;
}

void responder::start(bool is_wanted, message_content const& what, control_handler handler) {
    if (!is_open_ || !is_wanted) return core_->refuse(std::move(handler));
    // If that throws nothing was sent, and it may be answered again.
    core_->answer(id_, target_, what, std::move(handler));
    is_open_ = false;
}

}  // namespace rcverbs::detail

namespace rcverbs {

namespace {

std::shared_ptr<detail::request_core> make(
    connection over, request_channel_options const& options
) {
    detail::throw_if_refused(detail::problem_of(options));
    return protocol::make<detail::request_core>(std::move(over), options);
}

std::shared_ptr<detail::request_core> make(
    connection over, request_channel_options const& options, error_code& ec
) {
    if (!ec && !detail::problem_of(options).empty()) ec = errc::invalid_option;
    return ec ? nullptr : protocol::make<detail::request_core>(std::move(over), options);
}

detail::request_core& as_requests(detail::channel_core& core) {
    return static_cast<detail::request_core&>(core);
}

}  // namespace

void reply::move_to(mutable_slice const& into) {
    if (!bytes().empty()) std::memcpy(into.data(), bytes().data(), bytes().size());
    set_body(into.first(static_cast<std::size_t>(size())));
}

request_channel_base::request_channel_base(connection over, request_channel_options const& options)
    : channel_base{make(std::move(over), options)} {}

request_channel_base::request_channel_base(
    connection over, request_channel_options const& options, error_code& ec
)
    : channel_base{make(std::move(over), options, ec)} {}

connection_options request_channel_base::needed(request_channel_options const& options) {
    return message_channel_base::needed(options.messages);
}

void request_channel_base::start_request(
    core_ptr const& core, detail::question const& what, detail::reply_handler handler
) {
    as_requests(*core).ask(what, std::move(handler));
}
void request_channel_base::start_notify(
    core_ptr const& core, detail::question const& what, detail::control_handler handler
) {
    as_requests(*core).notify(what, std::move(handler));
}
void request_channel_base::start_next(core_ptr const& core, detail::next_handler handler) {
    as_requests(*core).next(std::move(handler));
}
request_channel_statistics request_channel_base::statistics() const {
    return as_requests(*core()).statistics();
}

}  // namespace rcverbs
