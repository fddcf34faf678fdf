#include <rcverbs/experimental/ring.hpp>

#include <algorithm>
#include <utility>

#include <rcverbs/detail/option_check.hpp>

#include "remote/ring_core.hpp"
#include "remote/start_in_order.hpp"

namespace rcverbs {

namespace {

connection_options for_writer(ring_options const& options) {
    detail::throw_if_refused(detail::problem_of(options));
    connection_options c = options.connection;
    auto& q = c.queue_pair;
    q.receive_queue_depth = std::max(q.receive_queue_depth, detail::ring_writer_core::counts_max);
    return c;
}

connection_options for_reader(ring_options const& options) {
    detail::throw_if_refused(detail::problem_of(options));
    connection_options c = options.connection;
    auto& q = c.queue_pair;
    q.receive_queue_depth = std::max(q.receive_queue_depth, options.records);
    q.send_queue_depth = std::max(q.send_queue_depth, detail::ring_writer_core::counts_max);
    return c;
}

}  // namespace

// --- writer --------------------------------------------------------------------------------------

ring_writer::ring_writer() noexcept = default;
ring_writer::ring_writer(ring_writer&&) noexcept = default;

ring_writer& ring_writer::operator=(ring_writer&& other) noexcept {
    if (this == &other) return *this;
    close();
    core_ = std::move(other.core_);
    return *this;
}

ring_writer::~ring_writer() { close(); }

ring_writer::ring_writer(runs_on<boost::asio::any_io_executor> where, ring_options const& options)
    : core_{protocol::make<detail::ring_writer_core>(
          connection{std::move(where), for_writer(options)}, options
      )} {}

ring_writer::ring_writer(
    runs_on<boost::asio::any_io_executor> where,
    connection_request request,
    ring_options const& options
)
    : core_{protocol::make<detail::ring_writer_core>(
          connection{std::move(where), std::move(request), for_writer(options)}, options
      )} {}

ring_writer::executor_type ring_writer::get_executor() const noexcept {
    return core_->own_executor();
}
bool ring_writer::is_open() const noexcept { return core_ != nullptr && core_->is_open(); }
std::size_t ring_writer::record_bytes_max() const noexcept { return core_->record_bytes_max(); }
void ring_writer::close() noexcept {
    if (core_ != nullptr) core_->close();
}
failure ring_writer::last_failure() const { return core_->last_failure(); }
ring_statistics ring_writer::statistics() const { return core_->statistics(); }

void ring_writer::start_connect(
    core_ptr const& core, endpoint const& peer, detail::control_handler handler
) {
    detail::start_closable(core, std::move(handler), [peer](detail::ring_writer_core& c, auto who) {
        c.connect(peer, std::move(who));
    });
}
void ring_writer::start_accept(core_ptr const& core, detail::control_handler handler) {
    detail::start_closable(core, std::move(handler), [](detail::ring_writer_core& c, auto who) {
        c.accept(std::move(who));
    });
}
void ring_writer::start_write(
    core_ptr const& core, std::span<std::byte const> record, detail::control_handler handler
) {
    detail::start_in_order(
        core,
        std::move(handler),
        [record](detail::ring_writer_core& c, auto who) { c.write(record, std::move(who)); }
    );
}
void ring_writer::start_finish(core_ptr const& core, detail::control_handler handler) {
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
        core->run([core, number = number_, lent = lent_] { core->release(number, lent); });
    } catch (...) {
        // Without memory the writer would not hear of it.
        core->close();
    }
}

// --- reader --------------------------------------------------------------------------------------

ring_reader::ring_reader() noexcept = default;
ring_reader::ring_reader(ring_reader&&) noexcept = default;

ring_reader& ring_reader::operator=(ring_reader&& other) noexcept {
    if (this == &other) return *this;
    close();
    core_ = std::move(other.core_);
    return *this;
}

ring_reader::~ring_reader() { close(); }

ring_reader::ring_reader(runs_on<boost::asio::any_io_executor> where, ring_options const& options)
    : core_{protocol::make<detail::ring_reader_core>(
          connection{std::move(where), for_reader(options)}, options
      )} {}

ring_reader::ring_reader(
    runs_on<boost::asio::any_io_executor> where,
    connection_request request,
    ring_options const& options
)
    : core_{protocol::make<detail::ring_reader_core>(
          connection{std::move(where), std::move(request), for_reader(options)}, options
      )} {}

ring_reader::executor_type ring_reader::get_executor() const noexcept {
    return core_->own_executor();
}
bool ring_reader::is_open() const noexcept { return core_ != nullptr && core_->is_open(); }
void ring_reader::close() noexcept {
    if (core_ == nullptr) return;
    try {
        // Behind the records that were released before.
        core_->run([core = core_] { core->leave(); });
    } catch (...) {
        core_->close();  // no memory
    }
}
failure ring_reader::last_failure() const { return core_->last_failure(); }
ring_statistics ring_reader::statistics() const { return core_->statistics(); }

void ring_reader::start_connect(
    core_ptr const& core, endpoint const& peer, detail::control_handler handler
) {
    detail::start_closable(core, std::move(handler), [peer](detail::ring_reader_core& c, auto who) {
        c.connect(peer, std::move(who));
    });
}
void ring_reader::start_accept(core_ptr const& core, detail::control_handler handler) {
    detail::start_closable(core, std::move(handler), [](detail::ring_reader_core& c, auto who) {
        c.accept(std::move(who));
    });
}
void ring_reader::start_read(core_ptr const& core, read_handler handler) {
    detail::start_in_order(core, std::move(handler), [](detail::ring_reader_core& c, auto who) {
        c.read(std::move(who));
    });
}

}  // namespace rcverbs
