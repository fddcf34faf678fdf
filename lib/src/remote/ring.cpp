#include <rcverbs/experimental/ring.hpp>
#include <rcverbs/experimental/protocol/option_check.hpp>

#include <algorithm>
#include <utility>

#include "remote/ring_core.hpp"
#include "remote/start_in_order.hpp"

namespace rcverbs {

namespace {

template <class Core>
std::shared_ptr<Core> make(connection over, ring_options const& options) {
    detail::throw_if_refused(detail::problem_of(options));
    return protocol::make<Core>(std::move(over), options);
}

template <class Core>
std::shared_ptr<Core> make(connection over, ring_options const& options, error_code& ec) {
    if (!ec && !detail::problem_of(options).empty()) ec = errc::invalid_option;
    return ec ? nullptr : protocol::make<Core>(std::move(over), options);
}

// Places in both queues for the messages of the authentication.
std::uint32_t proofs(ring_options const& options) {
    return options.authentication.keys.is_empty() ? 0 : 1;
}

}  // namespace

// --- writer --------------------------------------------------------------------------------------

ring_writer_base::ring_writer_base(connection over, ring_options const& options)
    : core_{make<detail::ring_writer_core>(std::move(over), options)} {}

ring_writer_base::ring_writer_base(connection over, ring_options const& options, error_code& ec)
    : core_{make<detail::ring_writer_core>(std::move(over), options, ec)} {}

connection_options ring_writer_base::needed(ring_options const& options) {
    connection_options c = options.connection;
    auto& q = c.queue_pair;
    q.receive_queue_depth =
        std::max(q.receive_queue_depth, detail::ring_writer_core::counts_max + proofs(options));
    return c;
}

std::size_t ring_writer_base::record_bytes_max() const noexcept {
    return core_->record_bytes_max();
}
void ring_writer_base::close() noexcept {
    if (core_ != nullptr) core_->close();
}
failure ring_writer_base::last_failure() const { return core_->last_failure(); }
std::string ring_writer_base::peer_identity() const { return core_->peer_identity(); }
ring_statistics ring_writer_base::statistics() const { return core_->statistics(); }

void ring_writer_base::start_connect(
    core_ptr const& core, endpoint const& peer, detail::control_handler handler
) {
    detail::start_in_order(core, std::move(handler), [peer](detail::ring_writer_core& c, auto who) {
        c.connect(peer, std::move(who));
    });
}
void ring_writer_base::start_accept(core_ptr const& core, detail::control_handler handler) {
    detail::start_in_order(core, std::move(handler), [](detail::ring_writer_core& c, auto who) {
        c.accept(std::move(who));
    });
}
void ring_writer_base::start_write(
    core_ptr const& core, std::span<std::byte const> record, detail::control_handler handler
) {
    detail::start_in_order(
        core,
        std::move(handler),
        [record](detail::ring_writer_core& c, auto who) { c.write(record, std::move(who)); }
    );
}
void ring_writer_base::start_finish(core_ptr const& core, detail::control_handler handler) {
    detail::start_closable(core, std::move(handler), [](detail::ring_writer_core& c, auto who) {
        c.finish(std::move(who));
    });
}

// --- record --------------------------------------------------------------------------------------

ring_record::ring_record() noexcept = default;

ring_record::ring_record(ring_record&& other) noexcept
    : core_{std::move(other.core_)},
      bytes_{std::exchange(other.bytes_, {})},
      number_{other.number_},
      lent_{other.lent_} {}

ring_record& ring_record::operator=(ring_record&& other) noexcept {
    if (this == &other) return *this;
    release();
    core_ = std::move(other.core_);
    bytes_ = std::exchange(other.bytes_, {});
    number_ = other.number_;
    lent_ = other.lent_;
    return *this;
}

ring_record::~ring_record() { release(); }

void ring_record::release() noexcept {
    auto const core = std::exchange(core_, nullptr);
    bytes_ = {};
    if (core == nullptr) return;
    try {
        core->enter([core = core.get(), number = number_, lent = lent_] {
            core->release(number, lent);
        });
    } catch (...) {
        // Without memory the writer would not hear of it.
        core->close();
    }
}

// --- reader --------------------------------------------------------------------------------------

ring_reader_base::ring_reader_base(connection over, ring_options const& options)
    : core_{make<detail::ring_reader_core>(std::move(over), options)} {}

ring_reader_base::ring_reader_base(connection over, ring_options const& options, error_code& ec)
    : core_{make<detail::ring_reader_core>(std::move(over), options, ec)} {}

connection_options ring_reader_base::needed(ring_options const& options) {
    connection_options c = options.connection;
    auto& q = c.queue_pair;
    q.receive_queue_depth = std::max(
        q.receive_queue_depth, std::min(options.records, detail::ring_records_max) + proofs(options)
    );
    q.send_queue_depth = std::max(q.send_queue_depth, detail::ring_writer_core::counts_max);
    return c;
}

void ring_reader_base::close() noexcept {
    if (core_ == nullptr) return;
    try {
        // Behind the records that were released before.
        core_->enter([core = core_.get()] { core->leave_ring(); });
    } catch (...) {
        core_->close();  // no memory
    }
}
failure ring_reader_base::last_failure() const { return core_->last_failure(); }
std::string ring_reader_base::peer_identity() const { return core_->peer_identity(); }
ring_statistics ring_reader_base::statistics() const { return core_->statistics(); }

void ring_reader_base::start_connect(
    core_ptr const& core, endpoint const& peer, detail::control_handler handler
) {
    detail::start_in_order(core, std::move(handler), [peer](detail::ring_reader_core& c, auto who) {
        c.connect(peer, std::move(who));
    });
}
void ring_reader_base::start_accept(core_ptr const& core, detail::control_handler handler) {
    detail::start_in_order(core, std::move(handler), [](detail::ring_reader_core& c, auto who) {
        c.accept(std::move(who));
    });
}
void ring_reader_base::start_read(core_ptr const& core, read_handler handler) {
    detail::start_in_order(core, std::move(handler), [](detail::ring_reader_core& c, auto who) {
        c.read(std::move(who));
    });
}

}  // namespace rcverbs
