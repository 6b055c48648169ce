"""A binding of NVML that remembers what was asked of it, in place of a driver."""

from types import ModuleType, SimpleNamespace

NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST, FUNCTION_NOT_FOUND, DRIVER_NOT_LOADED = 3, 4, 15, 13, 9
NOT_FOUND = 6


class FakeNvml(ModuleType):
    """The part of ``pynvml`` that is used; ``refuse`` maps a function to the code that it fails with."""

    NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NO_PERMISSION = NOT_SUPPORTED, NO_PERMISSION
    NVML_ERROR_NOT_FOUND = NOT_FOUND
    NVML_ERROR_GPU_IS_LOST, NVML_ERROR_FUNCTION_NOT_FOUND = GPU_IS_LOST, FUNCTION_NOT_FOUND
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_DEVICE_ARCH_AMPERE, NVML_GPM_METRICS_GET_VERSION = 7, 1

    class NVMLError(Exception):
        def __init__(self, value):
            super().__init__(f"error {value}")
            self.value = value

    def __init__(self, architecture=9, capability=(9, 0)):
        super().__init__("pynvml")
        self.refuse, self.said = {}, []
        self.fields = {(186, 0): 650_123, (185, 0): 640_000, (186, 2): 90_000}
        self.samples = None
        self.energy_mj, self.limit_mw, self.processes, self.mig = 5_000_000, 700_000, [], [0, 0]
        self.architecture, self.capability, self.open = architecture, capability, 0
        answers = {
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda i: f"card {i}",
            "nvmlDeviceGetHandleByUUID": lambda u: f"card {u}",
            "nvmlDeviceGetName": lambda h: b"NVIDIA H200",
            "nvmlSystemGetDriverVersion": lambda: "580.1",
            "nvmlDeviceGetArchitecture": lambda h: self.architecture,
            "nvmlDeviceGetCudaComputeCapability": lambda h: list(self.capability),
            "nvmlDeviceGetTotalEnergyConsumption": lambda h: self.energy_mj,
            "nvmlDeviceGetSamples": self._written,
            "nvmlDeviceGetPowerUsage": lambda h: 641_000,
            "nvmlDeviceGetFieldValues": self._field_values,
            "nvmlDeviceGetClockInfo": lambda h, kind: {1: 1755, 2: 3201}[kind],
            "nvmlDeviceGetMaxClockInfo": lambda h, kind: {1: 1980, 2: 3201}[kind],
            "nvmlDeviceGetTemperature": lambda h, kind: 55,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda h: 0x4 | 0x40,
            "nvmlDeviceGetUtilizationRates": lambda h: SimpleNamespace(gpu=97, memory=40),
            "nvmlDeviceGetComputeRunningProcesses": lambda h: self.processes,
            "nvmlDeviceGetEnforcedPowerLimit": lambda h: self.limit_mw,
            "nvmlDeviceGetPowerManagementLimit": lambda h: self.limit_mw,
            "nvmlDeviceGetPowerManagementDefaultLimit": lambda h: 700_000,
            "nvmlDeviceGetPowerManagementLimitConstraints": lambda h: [200_000, 700_000],
            "nvmlDeviceGetSupportedMemoryClocks": lambda h: [3201, 1593],
            "nvmlDeviceGetSupportedGraphicsClocks": lambda h, memory: [1980, 1965, 345] if memory == 3201 else [345],
            "nvmlDeviceGetMemoryInfo": lambda h: SimpleNamespace(total=150_754_820_096),
            "nvmlDeviceGetNumGpuCores": lambda h: 132 * 128,
            "nvmlDeviceGetMigMode": lambda h: self.mig,
            "nvmlDeviceSetGpuLockedClocks": lambda h, low, high: None,
            "nvmlDeviceResetGpuLockedClocks": lambda h: None,
            "nvmlDeviceSetPowerManagementLimit": self._set_limit,
            "nvmlInit": lambda: self._count(1),
            "nvmlShutdown": lambda: self._count(-1),
        }
        for name, answer in answers.items():
            setattr(self, name, self._guarded(name, answer))

    def _guarded(self, name, answer):
        def function(*arguments):
            if name.startswith(("nvmlDeviceSet", "nvmlDeviceReset")):
                self.said.append((name, *arguments[1:]))
            if name in self.refuse:
                raise self.NVMLError(self.refuse[name])
            return answer(*arguments)

        return function

    def _field_values(self, handle, fields):
        # Powers are unsigned integers (type 1); what is not there has a return code of its own.
        return [
            SimpleNamespace(
                nvmlReturn=0 if field in self.fields else NOT_SUPPORTED,
                valueType=1,
                value=SimpleNamespace(uiVal=self.fields.get(field, 0), dVal=-1.0, ullVal=-1),
            )
            for field in fields
        ]

    def _written(self, handle, kind, since):
        if self.samples is None or kind != 0:
            raise self.NVMLError(NOT_SUPPORTED)
        return 1, self.samples()

    def _set_limit(self, handle, limit):
        self.limit_mw = limit

    def _count(self, by):
        self.open += by
