// conformance_cases.hpp — the tests of conformance.hpp for the operations in
// RCVERBS_ALL_OPERATIONS, on the including file's stage.
//
// Each file with operations includes it; the test names contain the type of the operation.

namespace {

/// Runs `act` on a stage, and tears the stage down.
void on_stage(std::function<asio::awaitable<void>(stage&)> act) {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        std::shared_ptr<stage> s = co_await stage::set(w, io);
        co_await act(*s);
        w.on_packet(nullptr);
        w.on_cm_event(nullptr);
        s->close();
        co_await s->ended();
        s.reset();
    });
    CHECK(w.live().queue_pairs == 0);
    CHECK(w.live().memory_regions == 0);
}

asio::awaitable<void> until(stage& s, std::function<bool()> done) {
    while (!done()) co_await sleep(s.io, 10us);
}

/// One of RCVERBS_ALL_OPERATIONS as values, so that each test is compiled once and not once for each.
struct operation_case {
    honours cancels;
    error_code over_the_limit;
    int limit;
    bool waits_for_end;
    void (*prepare)(stage&);
    void (*start)(stage&, plain_handler);
    void (*start_bound)(stage&, bound_handler);
    asio::awaitable<void> (*start_with_token)(stage&, int form);
};

template <class Operation>
asio::awaitable<void> start_with_token(stage& s, int form) {
    Operation::prepare(s);
    if (form == 0) {
        co_await Operation::start(s, asio::use_awaitable);
    } else if (form == 1) {
        auto outcome = co_await Operation::start(s, asio::as_tuple(asio::use_awaitable));
        CHECK_FALSE(std::get<0>(outcome));
    } else if (form == 2) {
        auto future = Operation::start(s, asio::use_future);
        co_await until(s, [&] { return future.wait_for(0s) == std::future_status::ready; });
        CHECK_NOTHROW(future.get());
    } else if (form == 3) {
        // A deferred operation does nothing before it is launched.
        auto later = Operation::start(s, asio::deferred);
        co_await sleep(s.io, 1ms);
        int calls = 0;
        std::move(later)(plain_handler{[&](error_code ec) { calls += ec ? 100 : 1; }});
        co_await until(s, [&] { return calls > 0; });
        CHECK(calls == 1);
    } else if (form == 4) {
        asio::any_io_executor executor;
        int calls = 0;
        auto const count = [&](error_code ec) { calls += ec ? 100 : 1; };
        Operation::start(s, asking_for_executor{&executor, count});
        CHECK(executor == s.io.get_executor());
        co_await until(s, [&] { return calls > 0; });
        CHECK(calls == 1);
    } else {
        Operation::start(s, asio::detached);
        co_await sleep(s.io, 20ms);
    }
}

template <class Operation>
operation_case case_of() {
    return {
        Operation::cancels,
        Operation::over_the_limit(),
        Operation::limit,
        Operation::waits_for_end,
        &Operation::prepare,
        [](stage& s, plain_handler h) { Operation::start(s, std::move(h)); },
        [](stage& s, bound_handler h) { Operation::start(s, std::move(h)); },
        &start_with_token<Operation>};
}

}  // namespace

/// A test for each operation; its body has the operation as `op`.
#define CONFORMANCE_CASE(function_, name_)                          \
    static void function_(operation_case const& op);                \
    TEMPLATE_TEST_CASE(name_, "[fabric]", RCVERBS_ALL_OPERATIONS) { \
        function_(case_of<TestType>());                             \
    }                                                               \
    static void function_(operation_case const& op)

CONFORMANCE_CASE(
    calls_once,
    "an operation calls its handler once, and not from inside the call that starts it; the handler "
    "can only be moved"
) {
    on_stage([&op](stage& s) -> asio::awaitable<void> {
        int calls = 0;
        op.prepare(s);
        op.start(s, plain_handler{[&](error_code ec) { calls += ec ? 100 : 1; }});
        CHECK(calls == 0);
        co_await until(s, [&] { return calls > 0; });
        co_await sleep(s.io, 10ms);
        CHECK(calls == 1);
    });
}

CONFORMANCE_CASE(
    uses_executors, "an operation completes on its handler's executor, or else on the connection's"
) {
    on_stage([&op](stage& s) -> asio::awaitable<void> {
        int calls = 0;
        handler_probe seen;
        op.prepare(s);
        op.start_bound(s, seen.handler(s.io, [&](error_code ec) { calls += ec ? 100 : 1; }));
        co_await until(s, [&] { return calls > 0; });
        CHECK(calls == 1);
        CHECK(seen.executor_calls >= 1);
    });
}

CONFORMANCE_CASE(
    uses_allocator,
    "an operation allocates with its handler's allocator, if at all, and frees before the call"
) {
    on_stage([&op](stage& s) -> asio::awaitable<void> {
        handler_probe seen;
        int blocks_in_call = -1;
        op.prepare(s);
        op.start_bound(s, seen.handler(s.io, [&](error_code) { blocks_in_call = seen.blocks; }));
        CHECK(seen.blocks > 0);
        co_await until(s, [&] { return blocks_in_call >= 0; });
        CHECK(blocks_in_call == 0);
        CHECK(seen.blocks == 0);
    });
}

CONFORMANCE_CASE(
    takes_tokens, "an operation works with awaitables, tuples, futures, deferred and detached"
) {
    auto const form = GENERATE(0, 1, 2, 3, 4, 5);
    on_stage([&op, form](stage& s) { return op.start_with_token(s, form); });
}

CONFORMANCE_CASE(
    honours_cancellation, "an operation honours the cancellations it documents, and no others"
) {
    on_stage([&op](stage& s) -> asio::awaitable<void> {
        silence(s.w);
        asio::cancellation_signal signal;
        std::optional<error_code> ended;
        handler_probe seen;
        op.start_bound(
            s,
            seen.handler(
                s.io, [&](error_code ec) { ended = ec; }, signal.slot()
            )
        );
        if (op.cancels == honours::terminal) {
            signal.emit(asio::cancellation_type::total);
            signal.emit(asio::cancellation_type::partial);
            co_await sleep(s.io, 1ms);
            CHECK_FALSE(ended);
            signal.emit(asio::cancellation_type::terminal);
        } else if (op.cancels == honours::none) {
            signal.emit(asio::cancellation_type::total);
            signal.emit(asio::cancellation_type::terminal);
            co_await sleep(s.io, 1ms);
            CHECK_FALSE(ended);
            s.close();
        } else {
            signal.emit(asio::cancellation_type::total);
        }
        co_await until(s, [&] { return ended.has_value(); });
        CHECK(*ended == asio::error::operation_aborted);
        // Cancelling a completed operation has no effect.
        signal.emit(asio::cancellation_type::terminal);
        co_await sleep(s.io, 1ms);
    });
}

CONFORMANCE_CASE(
    survives_races, "a cancellation that races with completion leaves one completion"
) {
    auto const after = GENERATE(range(0, 40));
    on_stage([&op, after](stage& s) -> asio::awaitable<void> {
        asio::cancellation_signal signal;
        int calls = 0;
        op.prepare(s);
        handler_probe seen;
        op.start_bound(
            s,
            seen.handler(
                s.io, [&](error_code) { ++calls; }, signal.slot()
            )
        );
        co_await sleep(s.io, after * 700ns);
        signal.emit(asio::cancellation_type::terminal);
        co_await until(s, [&] { return calls > 0; });
        co_await sleep(s.io, 10ms);
        CHECK(calls == 1);
    });
}

CONFORMANCE_CASE(
    ends_with_its_object, "an operation whose object is destroyed completes as aborted"
) {
    on_stage([&op](stage& s) -> asio::awaitable<void> {
        silence(s.w);
        std::optional<error_code> ended;
        op.start(s, plain_handler{[&](error_code ec) { ended = ec; }});
        co_await sleep(s.io, 100us);
        s.destroy();
        co_await until(s, [&] { return ended.has_value(); });
        // A wait for the connection's end may also complete without error here.
        CHECK((*ended == asio::error::operation_aborted || (op.waits_for_end && !*ended)));
    });
}

CONFORMANCE_CASE(
    ends_with_its_context, "an operation whose io_context is destroyed leaves nothing behind"
) {
    auto const witness = std::make_shared<int>(0);
    world w;
    {
        auto io = std::make_unique<asio::io_context>();
        std::shared_ptr<stage> s;
        asio::co_spawn(
            *io,
            stage::set(w, *io),
            [&](std::exception_ptr, std::shared_ptr<stage> made) { s = std::move(made); }
        );
        REQUIRE(w.run_until(*io, [&] { return s != nullptr; }));
        silence(w);
        op.start(*s, plain_handler{[witness](error_code) {}});
        w.run_for(*io, 50us);
        CHECK(witness.use_count() > 1);
        io.reset();
        CHECK(witness.use_count() == 1);
        s.reset();
    }
    CHECK(w.live() == fabric::object_counts{});
}

CONFORMANCE_CASE(
    has_a_limit, "one operation more than there may be fails, and harms none of the others"
) {
    on_stage([&op](stage& s) -> asio::awaitable<void> {
        silence(s.w);
        std::vector<error_code> ended;
        // Some operations have no limit.
        bool const has_limit = op.limit > 0;
        int const count = has_limit ? op.limit : 1000;
        for (int i = 0; i < count; ++i)
            op.start(s, plain_handler{[&](error_code ec) { ended.push_back(ec); }});
        co_await sleep(s.io, 100us);
        CHECK(ended.empty());
        if (has_limit) {
            op.start(s, plain_handler{[&](error_code ec) { ended.push_back(ec); }});
            co_await until(s, [&] { return !ended.empty(); });
            co_await sleep(s.io, 100us);
            CHECK(ended == std::vector<error_code>{op.over_the_limit});
        }
        s.close();
        co_await until(s, [&] {
            return ended.size() == static_cast<std::size_t>(count) + (has_limit ? 1 : 0);
        });
    });
}
