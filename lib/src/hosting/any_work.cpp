#include <boost/asio/execution/outstanding_work.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/require.hpp>

#include <memory>
#include <new>
#include <utility>

#include <rcverbs/detail/control_handler.hpp>

namespace rcverbs::detail {

namespace asio = boost::asio;

namespace {

using on_context = asio::io_context::executor_type;
constexpr auto tracked = asio::execution::outstanding_work.tracked;
using counting = decltype(asio::require(std::declval<on_context const&>(), tracked));

template <class Bytes>
auto& counting_in(Bytes& memory) noexcept {
    return *std::launder(reinterpret_cast<counting*>(memory.data()));
}

}  // namespace

any_work::any_work(asio::any_io_executor const& e) {
    static_assert(sizeof(counting) <= sizeof counted_ && alignof(counting) <= alignof(void*));
    if (auto const* const io = e.target<on_context>()) {
        ::new (counted_.data()) counting{asio::require(*io, tracked)};
        is_counted_ = true;
    } else {
        ::new (&other_) asio::any_io_executor{asio::prefer(e, tracked)};
        is_counted_ = false;
    }
}

any_work::any_work(any_work&& other) noexcept : is_counted_{other.is_counted_} {
    if (is_counted_) ::new (counted_.data()) counting{std::move(counting_in(other.counted_))};
    else ::new (&other_) asio::any_io_executor{std::move(other.other_)};
}

any_work::~any_work() {
    if (is_counted_) std::destroy_at(&counting_in(counted_));
    else std::destroy_at(&other_);
}

asio::any_io_executor any_work::get_executor() const {
    if (!is_counted_) return other_;
    auto const& own = *std::launder(reinterpret_cast<counting const*>(counted_.data()));
    return on_context{asio::require(own, asio::execution::outstanding_work.untracked)};
}

}  // namespace rcverbs::detail
