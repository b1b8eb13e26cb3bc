// The Python module strata._native: the context, and what the other bind_*.cpp add.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "context.h"

namespace nb = nanobind;
using namespace strata;

void bind_products(nb::module_ &m);
void bind_ops(nb::module_ &m);
void bind_files(nb::module_ &m);
void bind_server(nb::module_ &m);

static Isa parse_isa(const std::string &name) {
    for (Isa isa : ALL_ISAS)
        if (name == isa_name(isa)) {
            if (!is_supported(isa))
                throw std::invalid_argument("this processor cannot run " + name);
            return isa;
        }
    throw std::invalid_argument("no instruction set named " + name);
}

NB_MODULE(_native, m) {
    // What module globals still hold when the interpreter ends is no leak worth a warning.
    nb::set_leak_warnings(false);
    m.doc() = "Strata's C++ kernels: products of quantised weights, model operations, thread pool, file reads.";
    nb::class_<Context>(m, "Context")
        .def(
            "__init__",
            [](Context *self, int num_threads, const std::string &isa) {
                if (num_threads < 1 || num_threads > 1024)
                    throw std::invalid_argument("num_threads must be between 1 and 1024");
                new (self) Context(num_threads, parse_isa(isa));
            },
            nb::arg("num_threads"), nb::arg("isa"))
        .def_prop_ro("num_threads", [](const Context &c) { return c.pool.num_threads(); })
        .def_prop_ro("isa", [](const Context &c) { return std::string(isa_name(c.isa)); });
    m.def("best_isa", [] { return std::string(isa_name(best_isa())); });
    m.def("is_isa_supported", [](const std::string &name) {
        for (Isa isa : ALL_ISAS)
            if (name == isa_name(isa)) return is_supported(isa);
        return false;
    });
    bind_products(m);
    bind_ops(m);
    bind_files(m);
    bind_server(m);
}
