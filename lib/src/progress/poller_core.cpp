#include "progress/poller_core.hpp"

#include <rcverbs/detail/option_check.hpp>
#include "hosting/poller_thread.hpp"
#include "hosting/sequence.hpp"
#include "progress/cq_poller.hpp"

namespace rcverbs::progress {

namespace {

poller_options const& checked(poller_options const& o, bool has_thread) {
    detail::option_check check{"poller_options"};
    check.from("polling.spin", o.polling.spin, std::chrono::nanoseconds{0})
        .that(
            has_thread || o.cpus.empty(),
            "cpus",
            "selects processors of a polling thread, and there is none"
        );
    detail::throw_if_refused(check.problem());
    return o;
}

}  // namespace

poller_core::poller_core(boost::asio::any_io_executor executor, poller_options const& options)
    : executor_{std::move(executor)},
      order_{std::make_shared<hosting::sequence>(executor_)},
      polling_{checked(options, false).polling},
      completion_vector_{options.completion_vector} {}

poller_core::poller_core(poller_options const& options)
    : thread_{hosting::poller_thread::start(checked(options, true).cpus)},
      executor_{thread_->context().get_executor()},
      order_{std::make_shared<hosting::sequence>(executor_)},
      polling_{options.polling},
      completion_vector_{options.completion_vector} {}

poller_core::~poller_core() = default;

std::shared_ptr<cq_poller> poller_core::queues_on(
    ibv_context* device,
    cq_poller const* last,
    std::function<std::shared_ptr<cq_poller>()> const& make
) const {
    std::lock_guard const lock{mutex_};
    std::erase_if(queues_, [](auto const& each) { return each.second.expired(); });
    std::weak_ptr<cq_poller>& known = queues_[device];
    std::shared_ptr<cq_poller> found = known.lock();
    if (found == nullptr || found.get() == last) {
        found = make();
        known = found;
    }
    return found;
}

}  // namespace rcverbs::progress

namespace rcverbs {

poller poller::start(poller_options const& options) {
    return poller{std::make_shared<progress::poller_core const>(options)};
}

poller poller::on_executor(executor_type const& executor, poller_options const& options) {
    if (!executor) detail::throw_if_refused("the executor is empty");
    return poller{std::make_shared<progress::poller_core const>(executor, options)};
}

poller::executor_type poller::get_executor() const noexcept {
    return core_ != nullptr ? core_->executor() : executor_type{};
}

}  // namespace rcverbs
