# Warnings of every C target: link roped_warnings PRIVATE.
add_library(roped_warnings INTERFACE)
target_compile_options(roped_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion
    -Wstrict-prototypes -Wmissing-prototypes -Wswitch -Wvla -Wformat=2
    -Wno-missing-field-initializers> # tables leave the rest of a row zero
  $<$<AND:$<BOOL:${ROPED_WERROR}>,$<COMPILE_LANGUAGE:C>>:-Werror>
  $<$<AND:$<BOOL:${ROPED_WERROR}>,$<COMPILE_LANGUAGE:CUDA>>:-Werror=all-warnings>)
target_compile_definitions(roped_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:C>:_GNU_SOURCE>)
