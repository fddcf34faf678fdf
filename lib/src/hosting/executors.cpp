#include "hosting/executors.hpp"

#include <boost/asio/execution/context.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/query.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>

#include "hosting/poller_thread.hpp"

namespace rcverbs::hosting {

namespace asio = boost::asio;

namespace {

template <class... Executors>
bool is_strand_of(asio::any_io_executor const& e) noexcept {
    return ((e.target<asio::strand<Executors>>() != nullptr) || ...);
}

}  // namespace

std::shared_ptr<poller_thread> thread_of(asio::any_io_executor const& given) {
    asio::execution_context& context = context_of(given);
    if (!asio::has_service<single_thread>(context)) return nullptr;
    return asio::use_service<single_thread>(context).thread.lock();
}

asio::execution_context& context_of(asio::any_io_executor const& given) {
    return asio::query(given, asio::execution::context);
}

asio::any_io_executor in_order(asio::any_io_executor const& given) {
    using on_context = asio::io_context::executor_type;
    using on_pool = asio::thread_pool::executor_type;
    bool const is_ours = asio::has_service<single_thread>(context_of(given)) &&
                         given.target<on_context>() != nullptr;
    if (is_ours || is_strand_of<on_context, on_pool, asio::any_io_executor>(given)) return given;
    return asio::make_strand(given);
}

asio::any_io_executor at_large(asio::any_io_executor const& given) {
    if (auto* const s = given.target<asio::strand<asio::io_context::executor_type>>()) {
        return s->get_inner_executor();
    }
    if (auto* const s = given.target<asio::strand<asio::thread_pool::executor_type>>()) {
        return s->get_inner_executor();
    }
    if (auto* const s = given.target<asio::strand<asio::any_io_executor>>()) {
        return at_large(s->get_inner_executor());
    }
    return given;
}

}  // namespace rcverbs::hosting
