#include <rcverbs/experimental/protocol/orderly_end.hpp>

#include <utility>

namespace rcverbs::protocol {

orderly_end::orderly_end(driver& owner) : part{owner}, owner_{owner}, limit_{owner} {}

orderly_end::~orderly_end() = default;

bool orderly_end::begin(
    waiter<error_code> who, std::chrono::milliseconds timeout, std::function<void()> on_late
) {
    if (result_) {
        owner_.deliver(std::move(who), *result_);
        return false;
    }
    detail::close_when_cancelled(who, std::static_pointer_cast<driver>(owner()));
    waiting_.push_back(std::move(who));
    if (std::exchange(has_begun_, true)) return false;
    limit_.start(timeout, std::move(on_late));
    return true;
}

void orderly_end::said() {
    is_said_ = true;
    if (is_heard_) disconnect();
}

void orderly_end::heard() {
    is_heard_ = true;
    if (is_said_) disconnect();
}

void orderly_end::disconnect() {
    if (is_disconnecting_ || !owner_.complete()) return;
    is_disconnecting_ = true;
    owner_.lower().async_disconnect(owner_.ordered([this](error_code ec) { complete_all(ec); }));
}

void orderly_end::complete(error_code result) {
    if (!is_disconnecting_) complete_all(result);
}

void orderly_end::complete_all(error_code result) {
    limit_.cancel();
    if (has_begun_ && !result_) result_ = result;
    for (waiter<error_code>& who : std::exchange(waiting_, {}))
        owner_.deliver(std::move(who), *result_);
}

void orderly_end::abandon() noexcept { waiting_.clear(); }

}  // namespace rcverbs::protocol
