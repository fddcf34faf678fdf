// actor_impl.hpp — what an actor has.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/execution/context.hpp>
#include <boost/asio/query.hpp>

#include <memory>
#include <utility>

#include <rcverbs/experimental/protocol/actor.hpp>

#include "hosting/gate.hpp"
#include "hosting/light_mutex.hpp"
#include "hosting/members.hpp"
#include "hosting/sequence.hpp"

namespace rcverbs::protocol {

class actor::impl final : public hosting::member {
public:
    impl(std::shared_ptr<hosting::sequence> in, boost::asio::any_io_executor const& where)
        : order{std::move(in)},
          context{&boost::asio::query(where, boost::asio::execution::context)},
          executor{std::make_shared<boost::asio::any_io_executor const>(where)} {}
    ~impl() { drop_ready(); }

    void context_is_going(boost::asio::execution_context const&) noexcept override {
        if (auto const self = owner.lock()) self->abandon();
    }
    void drop_ready() noexcept {
        while (hosting::order_task* const t = ready.pop_front()) t->run(false);
    }

    std::shared_ptr<hosting::sequence> const order;
    hosting::gate inside;
    boost::asio::execution_context* const context;
    std::weak_ptr<actor> owner;
    hosting::membership membership;
    part* parts = nullptr;

    // Used inside.
    error_code end_code;
    hosting::task_list ready;
    // From when delivering is posted, or begins, until nothing is due.
    bool is_delivering = false;
    // It is posted as soon as the gate is left: who runs it on another thread finds the gate free.
    bool is_delivery_wanted = false;

    // Posts deliver_posted().
    class delivery final : public hosting::order_task {
    public:
        void post(std::shared_ptr<actor> to, hosting::sequence& in) {
            to_ = std::move(to);
            in.post(*this);
        }

    private:
        void run(bool is_wanted) override {
            auto const to = std::move(to_);
            if (is_wanted) to->deliver_posted();
        }

        std::shared_ptr<actor> to_;  // while it is posted
    } deliver_later;

    hosting::light_mutex mutex;
    // Guarded by the mutex, as any thread may read them. The executor, which may be the program's own,
    // is not copied under it.
    std::shared_ptr<boost::asio::any_io_executor const> executor;
    // Of a driver, from close() to the end.
    std::shared_ptr<actor> kept;
    bool has_ended = false;
};

}  // namespace rcverbs::protocol
